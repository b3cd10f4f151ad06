"""The janitor of a running app: it applies retention, and publishes scheduled messages in time."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from headrace import App, Message, store
from headrace.app.limits import ServiceLimits
from headrace.model.errors import StoreUnavailable
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.specs import StreamSpec
from headrace.runtime.maintenance import janitor
from headrace.runtime.maintenance.janitor import Janitor, JanitorTimings
from headrace.runtime.maintenance.sweeper import Sweeper, Swept
from headrace.store.database.retry import maintain
from tests.runtime.running import WITHIN, Seen, eventually, running
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio

FOREVER = 1000.0


def consuming(app: App, seen: Seen) -> None:
    @app.consumer("orders")
    async def ship(message: Message) -> None:
        seen.note(message.data)


async def test_a_running_app_removes_messages_that_are_too_old(app: App, database: store.Database, seen: Seen) -> None:
    await store.create_stream(database, StreamSpec(name="orders", retain_up_to=3600))
    await store.publish_many(database, "orders", ["a"] * 5, ["1"] * 5)
    await database.fetch("update headrace_streams.orders set created_at = now() - interval '2 hours' where seq < 4")
    consuming(app, seen)
    async with running(app):
        await eventually(lambda: is_first(database, 4))


async def is_first(database: store.Database, seq: int) -> bool:
    return bool(await database.fetchval("select min(seq) = $1 from headrace_streams.orders", seq))


async def test_a_scheduled_message_is_delivered_when_it_is_due_and_not_before(app: App, seen: Seen) -> None:
    app._limits = ServiceLimits(janitor=JanitorTimings(schedule=FOREVER))
    late = []

    @app.consumer("orders")
    async def ship(message: Message) -> None:
        late.append(time.time() - message.data)
        seen.note(message)

    async with running(app):
        for delay in (0.3, 0.2, 0.1):
            due = time.time() + delay
            await app.publish("orders", "a", due, deliver_at=datetime.fromtimestamp(due, UTC))
        await seen.until(3)
    assert min(late) >= 0


async def test_scheduling_a_message_wakes_the_janitor_of_the_same_process(app: App, seen: Seen) -> None:
    app._limits = ServiceLimits(janitor=JanitorTimings(schedule=FOREVER))
    consuming(app, seen)
    async with running(app):
        await app.publish("orders", "a", 0)
        await seen.until(1)
        await app.publish("orders", "a", 1, delay="50ms")
        await app.publish_many("orders", [("a", 2)], delay="100ms")
        assert await seen.until(3) == [0, 1, 2]


async def test_what_is_scheduled_while_the_schedule_is_read_is_delivered_in_time(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would wait for the process that leads, which looks once a second."""
    one = Janitor(database, lambda _: None, JanitorTimings(schedule=FOREVER))
    read, read_again = iter([False, True]), anyio.Event()

    async def deliver(**_: Any) -> tuple[int, float | None]:
        read_again.set() if next(read) else one.hurry()
        return 0, None

    monkeypatch.setattr(one._scheduled, "deliver", deliver)
    one.hurry()
    async with anyio.create_task_group() as group:
        group.start_soon(maintain, "schedule", one.deliver, FOREVER)
        with anyio.fail_after(WITHIN):
            await read_again.wait()
        group.cancel_scope.cancel()


async def test_a_message_that_another_process_schedules_is_delivered(
    app: App, database: store.Database, seen: Seen
) -> None:
    consuming(app, seen)
    async with running(app):
        await store.publish(
            database, "orders", "a", "1", options=PublishOptions(deliver_at=datetime.now(UTC) + timedelta(seconds=0.05))
        )
        assert await seen.until(1) == [1]


async def test_two_processes_at_once_publish_each_scheduled_message_once(dsn: str, seen: Seen) -> None:
    one, other = App(dsn), App(dsn)
    consuming(one, seen)
    consuming(other, seen)
    async with running(one), running(other):
        due = datetime.now(UTC) + timedelta(seconds=0.1)
        for number in range(20):
            await one.publish("orders", f"k.{number}", number, deliver_at=due + timedelta(milliseconds=number * 5))
        await seen.until(20)
        await one.idle()
        await other.idle()
    assert sorted(seen.notes) == list(range(20))


async def test_a_database_failure_is_retried_and_any_other_one_does_not_stop_the_app(
    app: App, seen: Seen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Exception] = [
        StoreUnavailable("no road"),
        ZeroDivisionError("the janitor's own"),
        StoreUnavailable("snow"),
    ]
    worked = anyio.Event()

    async def sweep(_self: Any, _now: Any = None) -> Swept:
        if failures:
            raise failures.pop(0)
        worked.set()
        return Swept()

    monkeypatch.setattr(Sweeper, "sweep", sweep)
    app._limits = ServiceLimits(janitor=JanitorTimings(repair=0.0))
    consuming(app, seen)
    with caplog.at_level(logging.WARNING, "headrace"):
        async with running(app):
            with anyio.fail_after(WITHIN):
                await worked.wait()
            await app.publish("orders", "a", 1)
            await seen.until(1)
    assert logged(caplog, "database unavailable", task="retention")
    assert logged(caplog, "maintenance failed", task="retention", error="the janitor's own")


async def test_the_janitor_rests_longer_while_there_is_nothing_to_do(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    found = [Swept(more=True), Swept(segments_dropped=1), *(Swept() for _ in range(3))]
    found += [Swept(again_in=0.5), Swept(), Swept(again_in=0.001)]

    async def sweep(_self: Any, _now: Any = None) -> Swept:
        return found.pop(0)

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        if not found:
            raise StoreUnavailable("enough")

    monkeypatch.setattr(Sweeper, "sweep", sweep)
    monkeypatch.setattr(janitor.anyio, "sleep", sleep)
    one = Janitor(database, lambda _: None)
    one._leading.set()
    with pytest.raises(StoreUnavailable):
        await one.sweep(_Fair())  # type: ignore[arg-type]
    assert rests == [janitor.AT_ONCE, janitor.BUSY, 1.0, 2.0, 4.0, 0.5, 4.0, janitor.SOONEST]


class _Fair:
    def cleared(self) -> None:
        """Do nothing."""
