"""Waking: how an idle consumer learns of new messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from headrace import App, Message, Retry, store
from headrace.app.limits import ServiceLimits
from headrace.flow.demand import PollIntervals
from headrace.runtime.leasing.timings import LeaseTimings
from headrace.runtime.maintenance.janitor import JanitorTimings
from headrace.runtime.pipeline.timings import Timings
from tests.runtime.running import Seen, eventually, running

FOREVER = 1000.0
NO_POLLS = PollIntervals(shortest=FOREVER, longest=FOREVER, polling=FOREVER)
NO_CHECKS = JanitorTimings(notifications_check=FOREVER)


@pytest.fixture
def app(dsn: str) -> App:
    """An app with consumers that lease only after a notification, or when a message falls due."""
    return without_polls(dsn)


def without_polls(dsn: str) -> App:
    app = App(dsn)
    app._timings = Timings(leasing=LeaseTimings(polls=NO_POLLS, shortest_term=FOREVER))
    app._limits = ServiceLimits(janitor=NO_CHECKS)
    return app


async def at_rest(app: App) -> None:
    """Wait until the consumer has subscribed, and has leased once more since then."""
    await eventually(lambda: app.database.fetchval("select count(*) from headrace_internal.waiting"))
    await app.idle()


def consuming(app: App, seen: Seen) -> None:
    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)


@pytest.mark.asyncio
async def test_an_idle_consumer_is_woken_when_another_process_publishes(app: App, database: store.Database) -> None:
    seen = Seen()
    consuming(app, seen)
    async with running(app):
        await at_rest(app)
        for number in range(1, 6):
            await store.publish(database, "orders", "a", str(number))
            await seen.until(number)


@pytest.mark.asyncio
async def test_an_idle_consumer_is_woken_when_a_transaction_that_published_commits(
    app: App, database: store.Database
) -> None:
    seen = Seen()
    consuming(app, seen)
    async with running(app):
        await at_rest(app)
        async with database.transaction() as connection:
            await app.publish("orders", "a", 1, tx=connection)
            await app.idle()
            assert seen.notes == []
        await seen.until(1)


@pytest.mark.asyncio
async def test_a_publish_wakes_no_process_without_a_consumer_of_the_stream(
    dsn: str, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: defaultdict[store.Database, list[int]] = defaultdict(list)
    listen = store.listen

    async def counted(process: store.Database, notify: Callable[[int], None], *rest: Any) -> None:
        def hear(stream: int) -> None:
            heard[process].append(stream)
            notify(stream)

        await listen(process, hear, *rest)

    monkeypatch.setattr(store, "listen", counted)
    seen = Seen()
    apps = {stream: without_polls(dsn) for stream in ("orders", "invoices", "prices")}
    for stream, app in apps.items():

        @app.consumer(stream, name="ship")
        async def ship(number: int) -> None:
            seen.note(number)

    async with AsyncExitStack() as processes:
        for app in apps.values():
            await processes.enter_async_context(running(app))
        await eventually(lambda: database.fetchval("select count(*) = 3 from headrace_internal.waiting"))
        for app in apps.values():
            await app.idle()
        for number, stream in enumerate(["orders"] * 5 + ["invoices", "prices"], start=1):  # they arrive in this order
            await store.publish(database, stream, "a", str(number))
            await seen.until(number)
        ids = {row["name"]: row["id"] for row in await database.fetch("select name, id from headrace_internal.streams")}
        assert {stream: {*heard[app.database]} for stream, app in apps.items()} == {name: {ids[name]} for name in apps}


@pytest.mark.asyncio
async def test_a_process_wakes_its_own_consumers_without_listening(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def without_notifications(*_: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(store, "listen", without_notifications)
    seen = Seen()
    consuming(app, seen)
    async with running(app):
        await app.idle()
        await app.publish("orders", "a", 1)
        await seen.until(1)
        await app.publish_many("orders", [("b", 2)])
        await seen.until(2)


@pytest.mark.asyncio
async def test_a_process_that_does_not_listen_does_not_subscribe(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    async def without_notifications(*_: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(store, "listen", without_notifications)
    consuming(app, Seen())
    async with running(app):
        await app.idle()
        await app.idle()
        assert await app.database.fetchval("select count(*) from headrace_internal.waiting") == 0


@pytest.mark.asyncio
async def test_a_retry_comes_when_it_is_due_without_a_notification(app: App) -> None:
    seen: list[int] = []

    @app.consumer("orders")
    async def ship(message: Message) -> Retry | None:
        seen.append(message.attempt)
        return Retry(after="50ms") if message.attempt < 3 else None

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
    assert seen == [1, 2, 3]


@pytest.mark.asyncio
async def test_a_consumer_is_notified_again_after_its_listening_connection_was_cut(
    app: App, database: store.Database
) -> None:
    seen = Seen()
    consuming(app, seen)
    async with running(app):
        await at_rest(app)
        listener = "select pid from pg_stat_activity where datname = current_database() and query like 'LISTEN %'"
        (cut,) = await database.fetch(listener)
        await database.fetchval("select pg_terminate_backend($1)", cut["pid"])

        async def hears_again() -> bool:
            return {row["pid"] for row in await database.fetch(listener)} - {cut["pid"]} != set()

        await eventually(hears_again)
        await store.publish(database, "orders", "a", "1")
        await seen.until(1)


@pytest.mark.asyncio
async def test_a_process_that_has_stopped_listening_begins_again_when_no_other_is_subscribed(
    app: App, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    app._limits = ServiceLimits(listen_check=0.01, unsubscribed_check=0.01, janitor=NO_CHECKS)
    app._timings = Timings(
        # Any share is too small, and it stops immediately.
        leasing=LeaseTimings(polls=NO_POLLS, shortest_term=0.1, least_share=2.0, leaving=2.0)
    )
    seen, checks, listening = Seen(), Seen(), Seen()
    listen, without_subscription = store.listen, store.without_subscription

    async def noted_listen(*arguments: Any) -> None:
        listening.note("begins")
        try:
            await listen(*arguments)
        finally:
            listening.note("ends")

    async def noted_check(database: store.Database, consumers: list[int]) -> set[int]:
        found = await without_subscription(database, consumers)
        checks.note(found)
        return found

    monkeypatch.setattr(store, "listen", noted_listen)
    monkeypatch.setattr(store, "without_subscription", noted_check)
    consuming(app, seen)
    async with running(app):
        await at_rest(app)
        (other,) = await database.fetch("update headrace_internal.waiting set until = 'infinity' returning consumer_id")
        await store.publish(database, "orders", "a", "1")
        await seen.until(1)
        assert await listening.until(2) == ["begins", "ends"]
        assert await checks.until(5) == [set()] * len(checks.notes)

        await database.fetch("delete from headrace_internal.waiting")
        assert await listening.until(3) == ["begins", "ends", "begins"]
        assert checks.notes[-1] == {other["consumer_id"]}
        await eventually(lambda: database.fetchval("select count(*) from headrace_internal.waiting"))
