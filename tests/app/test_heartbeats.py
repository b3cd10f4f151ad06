"""Heartbeats: each running process reports itself, other processes see it, and it is removed after
it has ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY
from uuid import uuid4

import anyio
import anyio.lowlevel
import msgspec
import pytest

from headrace import App, store
from headrace.admin import Admin
from headrace.app import heartbeats
from headrace.app.heartbeats import MAX_CONSUMERS, Heartbeats, Rate
from headrace.app.limits import ServiceLimits
from headrace.model import conditions
from headrace.model.capture import Backfill
from headrace.model.clock import Time
from headrace.model.records import ConsumerAtWork, WorkerFacts, WorkerInfo
from headrace.model.specs import ConsumerSpec
from tests.runtime.running import WITHIN, Gate, running

pytestmark = pytest.mark.asyncio

FACTS = WorkerFacts(host="here", pid=1, kind="run", version="1", started_at=datetime(2026, 1, 1, tzinfo=UTC))


async def _workers(database: store.Database, **settings: Any) -> list[WorkerInfo]:
    return (await store.workers(database, **settings))[1]


async def _until_reported(database: store.Database, count: int = 1) -> list[WorkerInfo]:
    """Wait for the first heartbeats. A process reports itself at its start, and each query takes some time."""
    with anyio.fail_after(WITHIN):
        while len(found := await _workers(database)) < count:
            await anyio.lowlevel.checkpoint()
    return found


async def test_a_running_app_is_listed_with_its_consumers_until_it_has_ended(
    dsn: str, database: store.Database
) -> None:
    app = App(dsn)

    @app.consumer("orders", concurrency=3)
    async def ship() -> None: ...

    async with running(app):
        (worker,) = await _until_reported(database)
        assert (worker.kind, worker.gone) == ("embedded", False)
        assert worker.started_at <= worker.seen_at + timedelta(seconds=5)
        (consumer,) = worker.consumers
        assert (consumer.stream, consumer.name, consumer.reason) == ("orders", "ship", "fixed")
        assert consumer.breaker is None
    assert await _workers(database) == []


async def test_a_process_reports_some_of_its_consumers_and_counts_the_others(
    dsn: str, database: store.Database
) -> None:
    app = App(dsn)
    app._limits = ServiceLimits(reported_consumers=2)

    async def ship() -> None: ...

    for number in range(5):
        app.consumer("orders", name=f"ship-{number}")(ship)
    async with running(app):
        (worker,) = await _until_reported(database)
        assert ([one.name for one in worker.consumers], worker.more_consumers) == (["ship-0", "ship-1"], 3)


async def test_a_process_reports_the_current_state_of_its_consumers(dsn: str, database: store.Database) -> None:
    app, gate, clock = App(dsn), Gate(), [100.0]

    @app.consumer("orders", concurrency=2, breaker=True)
    async def ship() -> None:
        await gate.wait()

    async with running(app):
        heartbeats = Heartbeats(database, app.statistics, Time(clock=lambda: clock[0]))
        assert heartbeats.facts().consumers[0].rate is None
        await app.publish_many("orders", [("a", 1), ("b", 2), ("c", 3)])
        await gate.until(2)
        (consumer,) = heartbeats.facts().consumers
        assert (consumer.actors, consumer.busy, consumer.acked, consumer.breaker) == (2, 2, 0, "closed")
        assert consumer.leased >= 2
        gate.open()
        await app.idle()
        clock[0] += 2
        (consumer,) = heartbeats.facts().consumers
        assert (consumer.busy, consumer.acked, consumer.rate) == (0, 3, 1.5)


async def test_a_process_reports_its_server_if_there_is_one(database: store.Database) -> None:
    counts = {"requests": 10, "in_flight": 2, "waiting": 7}
    clock = [0.0]
    heartbeats = Heartbeats(database, lambda: {"server": counts}, Time(clock=lambda: clock[0]))
    assert (found := heartbeats.facts().server) is not None
    assert (found.requests, found.in_flight, found.waiting) == (None, 2, 7)
    counts["requests"], clock[0] = 40, 3.0
    assert (found := heartbeats.facts().server) is not None
    assert found.requests == 10


async def test_a_process_reports_the_services_attached_to_its_app(dsn: str) -> None:
    app = App(dsn)

    class Pushing:
        """A service that does nothing and reports itself."""

        async def run(self, _: Any) -> None: ...
        def drain(self) -> None: ...
        def hurry(self) -> None: ...
        def app_statistics(self) -> dict[str, Any]:
            return {"consumers": {"orders:hook": {"actors": 4, "busy": 1}}, "server": {"requests": 5, "waiting": 2}}

    @app.consumer("orders")
    async def ship() -> None: ...

    app.attach(Pushing())
    async with running(app):
        facts = Heartbeats(app.database, app.statistics).facts()
    assert [one.name for one in facts.consumers] == ["ship", "hook"]
    assert facts.consumers[1].actors == 4
    assert facts.server is not None
    assert facts.server.waiting == 2


async def test_a_process_with_very_many_consumers_reports_some_and_the_number_of_the_others(
    database: store.Database,
) -> None:
    consumers = {f"orders:c{number}": {"reason": "x" * 1000} for number in range(MAX_CONSUMERS + 5)}
    facts = Heartbeats(database, lambda: {"consumers": consumers}).facts()
    assert (len(facts.consumers), facts.more_consumers) == (MAX_CONSUMERS, 5)
    assert len(facts.consumers[0].reason) < 200


async def test_a_count_that_was_reset_has_no_pace() -> None:
    rate = Rate()
    assert [rate.of("a", count, now) for now, count in enumerate((5, 8, 2, 4))] == [None, 3, None, 2]


async def test_a_process_without_heartbeats_is_gone_and_later_forgotten(database: store.Database) -> None:
    previous = datetime(2026, 1, 1, tzinfo=UTC)
    worker = uuid4()
    await store.record_heartbeat(database, worker, FACTS, now=previous)
    for seconds, gone in ((14, False), (16, True)):
        (found,) = await _workers(database, now=previous + timedelta(seconds=seconds))
        assert (found.id, found.gone) == (str(worker), gone)
    assert await store.forget_workers(database, now=previous + timedelta(seconds=59)) == 0
    assert await store.forget_workers(database, now=previous + timedelta(seconds=61)) == 1
    assert await _workers(database) == []


async def test_a_process_has_one_row_however_many_heartbeats_it_sends(database: store.Database) -> None:
    worker = uuid4()
    for pid in (1, 2, 3):
        await store.record_heartbeat(
            database, worker, WorkerFacts(host="h", pid=pid, kind="run", version="1", started_at=FACTS.started_at)
        )
    (found,) = await _workers(database)
    assert found.pid == 3


async def test_a_process_with_a_heartbeat_that_can_not_be_decoded_is_listed_as_unreadable(
    database: store.Database,
) -> None:
    await store.record_heartbeat(database, uuid4(), FACTS)
    await database.fetchval(
        """insert into headrace_internal.workers values ($1, clock_timestamp(), '{"host": 7}') returning 1""", uuid4()
    )
    assert {(one.host, one.kind) for one in await _workers(database)} == {("here", "run"), ("?", "unreadable")}


async def test_no_heartbeat_is_sent_while_the_database_is_away_and_nothing_fails(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = anyio.Event()

    async def rest(_: float) -> None:
        tried.set()
        await anyio.sleep_forever()

    monkeypatch.setattr(heartbeats.anyio, "sleep", rest)
    closed = store.Database(dsn)
    with anyio.fail_after(WITHIN):
        async with anyio.create_task_group() as group:
            group.start_soon(Heartbeats(closed, dict).run)
            await tried.wait()
            group.cancel_scope.cancel()


async def test_a_snapshot_takes_seven_round_trips_at_first_and_then_about_four(database: store.Database) -> None:
    for stream in ("orders", "events"):
        await store.create_stream(database, stream)
        for name in ("ship", "bill"):
            await store.declare_consumer(
                database, ConsumerSpec(stream=stream, name=name, where=conditions.parse("data.a > 1"))
            )
    await store.publish(database, "orders", "a", "1")
    await store.record_heartbeat(database, uuid4(), WorkerFacts(
        host="h", pid=1, kind="run", version="1", started_at=FACTS.started_at, consumers=[ConsumerAtWork(stream="orders", name="ship")],
    ))  # fmt: skip
    await store.create_source(database, "shop", "postgres", "orders", {"tables": ["public.orders"]})
    [shop] = await store.sources(database)
    await store.start_backfill(database, shop.id, "public.orders", '{"eq": 1}')
    before = database.statistics()["round_trips"]
    admin = Admin(database)
    found = await admin.snapshot()
    assert database.statistics()["round_trips"] - before == 7
    assert [one.info for one in found.sources] == [shop]
    assert found.sources[0].backfills == [Backfill.of(one) for one in await store.backfills(database)]
    assert [stream.name for stream in found.streams] == ["events", "orders"]
    assert [(one.stream, one.name, one.lag) for one in found.consumers] == [
        ("events", "bill", 0), ("events", "ship", 0), ("orders", "bill", 1), ("orders", "ship", 1),
    ]  # fmt: skip
    assert [one.host for one in found.processes] == ["h"]
    assert await admin.processes() == [
        msgspec.structs.replace(one, uptime_seconds=ANY, silent_seconds=ANY) for one in found.processes
    ]
    before = database.statistics()["round_trips"]
    for _ in range(5):
        await admin.snapshot()
    assert database.statistics()["round_trips"] - before <= 5 * 4
    assert abs((found.at - datetime.now(UTC)).total_seconds()) < 60
