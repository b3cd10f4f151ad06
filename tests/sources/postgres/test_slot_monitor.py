"""The watch of a capture reports the state of its slot every few seconds, raises alarms and never disturbs capture."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import anyio
import pytest
import pytest_asyncio

from headrace import store
from headrace.model.capture import CaptureFacts, CaptureInfo
from headrace.sources.postgres.capture import slot_monitor as module
from headrace.sources.postgres.capture.slot_monitor import ANSWER_TIMEOUT, HEARTBEAT, INTERVAL, SlotMonitor
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.errors import SourceUnavailable
from headrace.sources.postgres.held_capture import HeldCapture
from headrace.sources.postgres.pgoutput import positions
from headrace.sources.postgres.spec import PostgresSpec
from tests.runtime.running import WITHIN, eventually
from tests.sources.postgres.captured import Shop, drop_slots
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio

COMMITTED = datetime(2030, 1, 1, tzinfo=UTC)
LONG = 3600.0


class Observed:
    """The view that a monitor has of its capturer."""

    problem = ("A table is gone.", "create it")
    lowest = None

    def __init__(self, bench: Bench, connect: Callable[[], Awaitable[SourceConnection]]) -> None:
        self._bench = bench
        self._connect = connect

    @property
    def progress(self) -> tuple[int, int, datetime]:
        return self._bench.position, self._bench.total, COMMITTED

    async def connect(self) -> SourceConnection:
        return await self._connect()


class Bench:
    """A watch, and everything it depends on."""

    def __init__(self, shop: Shop, slot: str, number: int, epoch: int) -> None:
        self.shop, self.slot, self.number, self.epoch = shop, slot, number, epoch
        self.now = 0.0
        self.position, self.total = 0, 0
        self.name = f"watch {uuid4().hex[:8]}"
        """The application name of its connections."""

    async def connect(self) -> SourceConnection:
        return await SourceConnection.connect(self.shop.dsn, application_name=self.name)

    async def connections(self) -> list[int]:
        rows = await self.shop.sql.fetch(
            "select pid from pg_stat_activity where datname = current_database() and application_name = $1", self.name
        )
        return [row["pid"] for row in rows]

    def monitor(
        self,
        connect: Callable[[], Awaitable[SourceConnection]] | None = None,
        interval: float = INTERVAL,
        answer_timeout: float = ANSWER_TIMEOUT,
        **settings: Any,
    ) -> SlotMonitor:
        spec = PostgresSpec(name="shop", stream="shop", tables=("public.orders",), **settings)
        capture = HeldCapture(self.shop.database, self.number, self.epoch)
        observed = Observed(self, connect or self.connect)
        return SlotMonitor(capture, spec, self.slot, observed, lambda: self.now, interval, answer_timeout)

    async def reported(self) -> CaptureInfo:
        capture = (await store.source(self.shop.database, "shop")).capture
        assert capture is not None
        return capture

    async def facts(self) -> CaptureFacts:
        facts = (await self.reported()).facts
        assert facts is not None
        return facts

    async def written(self) -> int:
        """Return the current end of the server's WAL."""
        return positions.parse(str(await self.shop.sql.fetchval("select pg_current_wal_lsn()::text")))


@pytest_asyncio.fixture
async def bench(shop: Shop) -> AsyncIterator[Bench]:
    """A slot without a reader, and a capture lease that does not expire during the test."""
    await shop.source()
    [todo] = await store.captures_to_do(shop.database)
    epoch = await store.take_capture(shop.database, todo.number, uuid4(), LONG)
    assert epoch is not None
    slot = f"watched_{uuid4().hex}"
    await shop.sql.execute("create publication watched for table orders")
    await shop.sql.fetch("select pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    bench = Bench(shop, slot, todo.number, epoch)
    bench.position = await bench.written()
    try:
        yield bench
    finally:
        await drop_slots(shop.sql)


@pytest_asyncio.fixture
async def server_facts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Facts of the slot that the watch gets from now on instead of the real ones."""
    reported: dict[str, Any] = {"held_back": 10, "wal_status": "reserved", "behind": 5}

    async def slot_facts(connection: SourceConnection, name: str, captured: int) -> CaptureFacts:
        assert (name, captured) == (bench.slot, bench.position)
        return CaptureFacts(**reported)

    monkeypatch.setattr(module.slots, "slot_facts", slot_facts)
    return reported


# --- reports


async def test_a_look_reports_the_state_of_the_slot_and_the_rate_of_changes(bench: Bench) -> None:
    monitor = bench.monitor()
    assert await monitor.check()
    facts = await bench.facts()
    assert facts.wal_status == "reserved"
    assert facts.committed_at == COMMITTED
    assert (facts.rate, facts.alarm) == (0.0, None)
    reported = await bench.reported()
    assert (reported.state, reported.reason, reported.mend) == ("running", "A table is gone.", "create it")
    await bench.shop.sql.fetch("select pg_logical_emit_message(true, 'test', repeat('x', 3000000))")
    bench.now, bench.total = 5.0, 1000
    assert await monitor.check()
    then, facts = facts, await bench.facts()
    assert facts.rate == 200.0
    assert facts.behind is not None
    assert facts.held_back is not None
    assert then.held_back is not None
    assert facts.behind >= 3_000_000
    assert facts.held_back >= then.held_back + 3_000_000
    bench.position = await bench.written()
    bench.now = 10.0
    assert await monitor.check()
    later = await bench.facts()
    assert later.behind is not None
    assert later.behind < facts.behind
    assert later.rate == 0.0
    await monitor._close()


async def test_it_ends_when_another_process_captures(bench: Bench, server_facts: dict[str, Any]) -> None:
    monitor = bench.monitor()
    assert await monitor.check()
    await store.release_capture(bench.shop.database, bench.number, bench.epoch)
    assert await store.take_capture(bench.shop.database, bench.number, uuid4(), LONG) is not None
    with anyio.fail_after(WITHIN):
        await monitor.run()
    await eventually(lambda: _none_of(bench))  # a backend ends a moment after its client has closed


async def test_it_goes_on_until_it_is_cancelled_and_leaves_no_connection(bench: Bench) -> None:
    with anyio.fail_after(WITHIN):
        async with anyio.create_task_group() as group:
            group.start_soon(bench.monitor(interval=0.0).run)
            await eventually(bench.connections)
            first = (await eventually(lambda: _reported_at(bench)))[0]
            await eventually(lambda: _reported_at(bench, first))
            group.cancel_scope.cancel()
    await eventually(lambda: _none_of(bench))


async def _reported_at(bench: Bench, after: datetime | None = None) -> list[datetime]:
    at = (await bench.reported()).told_at
    return [at] if at is not None and (after is None or at > after) else []


async def _none_of(bench: Bench) -> bool:
    return not await bench.connections()


# --- alarms


async def test_an_alarm_is_reported_while_it_lasts_and_logged_when_it_begins_and_ends(
    bench: Bench, server_facts: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    monitor = bench.monitor(alarm=10_000_000)
    await monitor.check()
    assert not caplog.records
    server_facts["held_back"] = 20_000_000
    for _ in range(3):
        await monitor.check()
        assert "holds back 20 MB of WAL" in str((await bench.facts()).alarm)
    [begun] = caplog.records
    assert begun.levelname == "WARNING"
    assert begun in logged(caplog, "slot alarm", source="shop", slot=bench.slot, alarm="large")
    server_facts["wal_status"] = "unreserved"  # another problem, and a worse one
    await monitor.check()
    await monitor.check()
    assert len(caplog.records) == len(logged(caplog, "slot alarm")) == 2
    assert "The next checkpoint may remove it" in str((await bench.facts()).alarm)
    server_facts.update(wal_status="reserved", held_back=100)
    await monitor.check()
    await monitor.check()
    assert (await bench.facts()).alarm is None
    assert len(logged(caplog, "slot alarm cleared", source="shop", slot=bench.slot)) == 1
    assert len(caplog.records) == 3
    await monitor._close()


async def test_an_alarm_stays_while_the_server_does_not_say(
    bench: Bench, server_facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server_facts["wal_status"] = "lost"
    monitor = bench.monitor()
    await monitor.check()

    async def silent(*_: Any) -> CaptureFacts:
        raise SourceUnavailable("The server went away.")

    monkeypatch.setattr(module.slots, "slot_facts", silent)
    await monitor.check()
    facts = await bench.facts()
    assert facts.wal_status is None
    assert "is lost" in str(facts.alarm)


# --- failures of the database


async def test_a_server_that_cannot_be_queried_is_reported_once_and_changes_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    away = True

    async def connect() -> SourceConnection:
        if away:
            raise SourceUnavailable("Nobody answers at 127.0.0.1:1.")
        return await bench.connect()

    monitor = bench.monitor(connect)
    for now in range(3):
        bench.now, bench.total = float(now), now * 10
        assert await monitor.check()
    facts = await bench.facts()
    assert (facts.rate, facts.held_back, facts.wal_status) == (10.0, None, None)
    assert logged(caplog, "slot check failed", source="shop", error="Nobody answers at 127.0.0.1:1.") == caplog.records
    assert len(caplog.records) == 1
    away = False
    await monitor.check()
    assert (await bench.facts()).wal_status == "reserved"
    assert [caplog.records[-1]] == logged(caplog, "slot check succeeded again", source="shop")
    await monitor._close()


async def test_a_connection_that_was_cut_is_made_anew(bench: Bench) -> None:
    monitor = bench.monitor()
    await monitor.check()
    [pid] = await bench.connections()
    await bench.shop.sql.fetch("select pg_terminate_backend($1)", pid)
    await eventually(lambda: _none_of(bench))
    assert await monitor.check()
    assert (await bench.facts()).wal_status is None
    assert await monitor.check()
    assert (await bench.facts()).wal_status == "reserved"
    await monitor._close()


async def test_a_server_that_does_not_answer_is_not_waited_for(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async def silent() -> SourceConnection:
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.fail_after(WITHIN):
        assert await bench.monitor(silent, answer_timeout=0.01).check()
    assert logged(caplog, "slot check failed", source="shop", error="no answer within 0.01 s")


# --- heartbeats


async def _heartbeats(bench: Bench) -> int:
    """Count the heartbeats in the WAL since the slot was created."""
    rows = await bench.shop.sql.fetch(
        """select data from pg_logical_slot_peek_binary_changes(
               $1, null, null, 'proto_version', '1', 'publication_names', 'watched', 'messages', 'true')""",
        bench.slot,
    )
    return sum(row["data"][:1] == b"M" and b"headrace.heartbeat" in row["data"] for row in rows)


async def test_a_heartbeat_is_written_once_nothing_has_moved_for_so_long(
    bench: Bench, server_facts: dict[str, Any]
) -> None:
    monitor = bench.monitor(heartbeat=30.0)
    written = []
    for now, moves in ((0.0, 0), (29.0, 0), (30.0, 0), (59.0, 0), (60.0, 0), (80.0, 1), (109.0, 0), (110.0, 0)):
        bench.now = now
        bench.position += moves
        await monitor.check()
        written.append(monitor.heartbeats)
    assert written == [0, 0, 1, 1, 2, 2, 2, 3]
    assert await _heartbeats(bench) == 3
    await monitor._close()


async def test_no_heartbeat_is_written_where_none_is_wanted_or_there_is_nothing_to_move_over(
    bench: Bench, server_facts: dict[str, Any]
) -> None:
    quiet, without = bench.monitor(heartbeat=30.0), bench.monitor()
    server_facts["behind"] = 0
    for bench.now in (0.0, 100.0):
        await quiet.check()
    server_facts["behind"] = 5
    for bench.now in (200.0, 300.0):
        await without.check()
    assert await _heartbeats(bench) == 0
    await quiet._close()
    await without._close()


async def test_a_heartbeat_that_fails_leaves_the_facts_as_they_are(
    bench: Bench, server_facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "HEARTBEAT", "select no_such_function()")
    monitor = bench.monitor(heartbeat=1.0)
    for bench.now in (0.0, 10.0, 20.0):
        await monitor.check()
    assert monitor.heartbeats == 0
    assert (await bench.facts()).held_back == 10
    assert len(logged(caplog, "heartbeat failed", source="shop")) == 1


# --- beside a real capturer


async def test_a_capture_reports_its_slot_and_skips_heartbeats(shop: Shop) -> None:
    await shop.source()
    async with shop.captured():
        await shop.until_running()
        await shop.sql.fetch(HEARTBEAT)
        await shop.sql.execute("insert into orders values (1)")
        found = await shop.until(1)

        async def facts() -> CaptureFacts | None:
            capture = (await store.source(shop.database, "shop")).capture
            return None if capture is None else capture.facts

        reported = await eventually(facts)
    assert [one["record"]["id"] for one in found] == [1]
    assert reported.wal_status == "reserved"
    assert reported.held_back is not None
