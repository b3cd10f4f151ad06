"""The messages of a slot, which positions the replication stream confirms to the server, and why a replication stream ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest
import pytest_asyncio

from headrace.model.errors import HeadraceError
from headrace.sources.postgres.connection.replication_stream import ReceivedPayloads, Replication, ReplicationStream
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database.slots import ensure_slot, find_slot
from headrace.sources.postgres.errors import SlotLost, SourceStopped, SourceUnavailable
from headrace.sources.postgres.pgoutput import positions
from tests.runtime.running import WITHIN, eventually
from tests.sources.postgres.connections import (
    APPLICATION,
    WALSENDERS,
    connected,
    fresh,
    read_on,
    replicating,
    with_options,
)

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def connection(empty_dsn: str) -> AsyncIterator[SourceConnection]:
    """A connection to a database with a published table."""
    async with connected(empty_dsn) as connection:
        await connection.query(
            "create table orders (id int primary key, note text); create publication all_of_it for table orders"
        )
        yield connection


# --- what arrives


async def test_committed_changes_arrive_in_order_and_then_their_end(
    connection: SourceConnection, empty_dsn: str
) -> None:
    async with replicating(empty_dsn, connection) as replication:
        await connection.query("insert into orders values (1, 'one'); insert into orders values (2, 'two')")
        now = await _now(connection)
        received = await _until(replication, now)
    assert kinds(received) == "BRIIC"
    assert received.payloads[2].endswith(b"t\x00\x00\x00\x011t\x00\x00\x00\x03one")
    assert received.end >= now


async def test_the_end_moves_on_when_nothing_is_published(connection: SourceConnection, empty_dsn: str) -> None:
    async with replicating(empty_dsn, connection) as replication:
        await connection.query("create table elsewhere (id int); insert into elsewhere values (1)")
        received = await _until(replication, await _now(connection))
    assert "I" not in kinds(received)


async def test_the_end_is_not_reported_before_everything_up_to_it(connection: SourceConnection, empty_dsn: str) -> None:
    async with replicating(empty_dsn, connection) as replication:
        await connection.query("insert into orders select g, 'note' from generate_series(1, 5000) as g")
        ends, commits, rows = [], [], 0
        while not commits:
            received = await _read(replication)
            rows += kinds(received).count("I")
            commits += [int.from_bytes(payload[10:18], "big") for payload in received.payloads if payload[:1] == b"C"]
            ends += [] if commits else [received.end]
    assert rows == 5000
    assert len(ends) >= 2
    assert max(ends) < commits[0]


async def test_so_much_is_read_at_once_and_no_more(connection: SourceConnection, empty_dsn: str) -> None:
    async with replicating(empty_dsn, connection, max_bytes=100_000) as replication:
        await connection.query("insert into orders select g, repeat('x', 1000) from generate_series(1, 1000) as g")
        await connection.query("insert into orders select -g, '' from generate_series(1, 5000) as g")
        read, sizes, counts = 0, [], []
        while read < 6000:
            received = await _read(replication)
            read += kinds(received).count("I")
            sizes.append(sum(map(len, received.payloads)))
            counts.append(len(received.payloads))
    assert max(sizes) < 100_000 + 2_000
    assert max(counts) <= 2_000


async def test_changes_that_follow_one_another_are_read_together(
    connection: SourceConnection, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicating(empty_dsn, connection) as replication:
        await connection.query("insert into orders values (1)")
        await _until(replication, await _now(connection))
        monkeypatch.setattr(replication, "_next_read_at", anyio.current_time() + 0.2)  # after a read of few payloads
        for number in (2, 3, 4):
            await connection.query("insert into orders values ($1, null)", str(number))
        assert kinds(await _read(replication)).count("I") == 3


async def test_a_read_that_is_cancelled_loses_nothing(connection: SourceConnection, empty_dsn: str) -> None:
    async with replicating(empty_dsn, connection) as replication:
        seen = 0
        for number in range(100):
            await connection.query("insert into orders values ($1, 'note')", str(number))
            with anyio.move_on_after(0):
                seen += kinds(await replication.read()).count("I")
            with anyio.move_on_after(0.002):
                seen += kinds(await replication.read()).count("I")
        with anyio.fail_after(WITHIN):
            while seen < 100:
                seen += kinds(await replication.read()).count("I")
    assert seen == 100


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_large_transaction_comes_in_pieces_if_it_may(
    connection: SourceConnection, empty_dsn: str, streaming: bool
) -> None:
    frugal = with_options(empty_dsn, logical_decoding_work_mem="64kB")
    async with replicating(frugal, connection, streaming=streaming) as replication:
        await connection.query("insert into orders select g, repeat('x', 100) from generate_series(1, 3000) as g")
        found = kinds(await _until(replication, await _now(connection)))
    assert ("S" in found) is streaming
    assert found.count("I") == 3000


async def test_messages_come_too(connection: SourceConnection, empty_dsn: str) -> None:
    async with replicating(empty_dsn, connection) as replication:
        await connection.query("select pg_logical_emit_message(true, 'headrace', 'a token')")
        received = await _until(replication, await _now(connection))
    assert [payload[-7:] for payload in received.payloads if payload[:1] == b"M"] == [b"a token"]


async def test_an_odd_name_of_a_publication_is_no_trouble(connection: SourceConnection, empty_dsn: str) -> None:
    name = 'It\'s, "odd"'
    await connection.query('create publication "It\'s, ""odd""" for table orders')
    async with replicating(empty_dsn, connection, publication=name) as replication:
        await connection.query("insert into orders values (1, 'one')")
        assert "I" in kinds(await _until(replication, await _now(connection)))


async def test_it_works_under_uvloop(connection: SourceConnection, empty_dsn: str) -> None:
    uvloop = pytest.importorskip("uvloop")
    slot = fresh()
    await ensure_slot(connection, slot, owned=True, expected=None, application_name=APPLICATION)
    await connection.query("insert into orders select g, 'note' from generate_series(1, 5000) as g")

    async def read() -> int:
        async with (
            await SourceConnection.connect(empty_dsn, application_name=APPLICATION) as own,
            replicating(empty_dsn, own, slot=slot) as replication,
        ):
            return kinds(await _until(replication, await _now(own))).count("I")

    assert await asyncio.to_thread(uvloop.run, read()) == 5000


# --- what is confirmed


async def test_the_server_receives_the_confirmed_position(connection: SourceConnection, empty_dsn: str) -> None:
    slot = fresh()
    async with replicating(empty_dsn, connection, slot=slot) as replication:
        await connection.query("insert into orders values (1, 'one')")
        end = (await _until(replication, await _now(connection))).end
        assert (await _confirmed(connection, slot)) < end
        replication.confirm(end)
        replication.confirm(end - 1)  # the position never goes back

        async def is_confirmed() -> bool:
            return await _confirmed(connection, slot) == end

        await eventually(is_confirmed)


async def test_closing_confirms_the_last_position_even_with_much_unread(
    connection: SourceConnection, empty_dsn: str
) -> None:
    slot = fresh()
    async with replicating(empty_dsn, connection, slot=slot, keep=False) as replication:
        await connection.query("insert into orders values (1, 'one')")
        end = (await _until(replication, await _now(connection))).end
        await connection.query("insert into orders select g, repeat('x', 1000) from generate_series(2, 20000) as g")
        replication.confirm(end)
    assert await _confirmed(connection, slot) == end
    async with replicating(empty_dsn, connection, slot=slot) as replication:  # as if reading had gone on
        found = kinds(await _until(replication, await _now(connection)))
    assert found.count("I") == 19_999


async def test_the_server_gets_status_updates_while_the_feed_is_not_read(
    connection: SourceConnection, empty_dsn: str
) -> None:
    async with replicating(empty_dsn, connection, status_interval=0.05):
        await connection.query("insert into orders select g, repeat('x', 1000) from generate_series(1, 20000) as g")
        reply_times: set[str | None] = set()

        async def five_times() -> bool:
            rows = await connection.query(f"select reply_time from {WALSENDERS}")
            reply_times.update(time for (time,) in rows)
            return len(reply_times - {None}) >= 5

        await eventually(five_times)


async def test_the_interval_of_status_updates_depends_on_the_timeout_of_the_server(
    connection: SourceConnection, empty_dsn: str
) -> None:
    for timeout, status_interval in (("6000", 2.0), ("0", 10.0), ("60000", 10.0)):
        async with replicating(with_options(empty_dsn, wal_sender_timeout=timeout), connection) as replication:
            assert replication._status_interval == status_interval


async def test_reading_answers_a_server_that_asks_for_a_reply(connection: SourceConnection, empty_dsn: str) -> None:
    asking = with_options(
        empty_dsn, wal_sender_timeout="4000"
    )  # the server asks after half of that, and waits as long for the reply
    async with replicating(asking, connection, keep=False) as replication, anyio.create_task_group() as group:
        group.start_soon(read_on, replication)

        async def has_answered() -> bool:
            query = f"select from {WALSENDERS} where reply_time > backend_start + interval '1 second'"
            return bool(await connection.query(query))

        await eventually(has_answered)
        group.cancel_scope.cancel()


# --- how it ends


async def test_a_slot_that_is_gone_is_lost(connection: SourceConnection, empty_dsn: str) -> None:
    with pytest.raises(SlotLost, match="the_slot no longer exists"):
        await ReplicationStream.start(empty_dsn, _from("the_slot", 1), application_name=APPLICATION)


async def test_a_slot_in_use_by_another_connection_is_reported(connection: SourceConnection, empty_dsn: str) -> None:
    slot = fresh()
    async with replicating(empty_dsn, connection, slot=slot):
        with pytest.raises(
            SourceStopped, match=r"in use by another client \(replication slot .* is active for PID \d+\)"
        ):
            await ReplicationStream.start(empty_dsn, _from(slot, 1), application_name="other")


async def test_payloads_that_arrived_before_the_end_are_returned_first(
    connection: SourceConnection, empty_dsn: str
) -> None:
    async with replicating(empty_dsn, connection) as replication:
        await connection.query("insert into orders values (1, 'one')")
        now = await _now(connection)

        async def is_sent() -> bool:
            sent = f"select from {WALSENDERS} where sent_lsn >= $1::pg_lsn"
            return bool(await connection.query(sent, positions.as_text(now)))

        await eventually(is_sent)
        await _terminate(connection)
        received, error = await _to_the_end(replication)
        assert isinstance(error, SourceUnavailable)
        with pytest.raises(SourceUnavailable):  # and the error stays
            await replication.read()
    assert kinds(received) == "BRIC"


async def test_a_waiting_read_fails_when_the_server_ends_the_stream(
    connection: SourceConnection, empty_dsn: str
) -> None:
    async with replicating(empty_dsn, connection) as replication:

        async def wait() -> None:
            with pytest.raises(SourceUnavailable):
                await read_on(replication)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await _terminate(connection)


async def test_a_change_while_the_publication_was_missing_is_reported_and_not_skipped(
    connection: SourceConnection, empty_dsn: str
) -> None:
    slot = fresh()
    async with replicating(empty_dsn, connection, slot=slot) as replication:
        await connection.query("insert into orders values (1, 'one')")
        await connection.query("drop publication all_of_it")
        await connection.query("insert into orders values (2, 'two')")
        received, error = await _to_the_end(replication)
    _is_reported_missing(error)
    assert kinds(received).count("I") == 1

    again = await ReplicationStream.start(empty_dsn, _from(slot, received.end), application_name=APPLICATION)
    try:
        received, error = await _to_the_end(again)  # if the end were behind the change, nothing more would arrive
    finally:
        await again.close()
    _is_reported_missing(error)
    assert kinds(received).count("I") <= 1, "the first change may come again, and the second may not come yet"


def _is_reported_missing(error: HeadraceError) -> None:
    assert isinstance(error, SlotLost)
    assert "publication all_of_it was missing while its tables changed" in str(error)


# --- reading


def kinds(received: ReceivedPayloads) -> str:
    """Return the first letters of what arrived."""
    return "".join(chr(payload[0]) for payload in received.payloads)


async def _read(replication: ReplicationStream) -> ReceivedPayloads:
    with anyio.fail_after(WITHIN):
        return await replication.read()


def _from(slot: str, position: int) -> Replication:
    return Replication(slot=slot, publications=["all_of_it"], position=position)


async def _until(replication: ReplicationStream, position: int) -> ReceivedPayloads:
    """Return everything that arrives up to this position."""
    payloads: list[bytes] = []
    while True:
        received = await _read(replication)
        payloads += received.payloads
        if received.end >= position:
            return ReceivedPayloads(payloads, received.end)


async def _to_the_end(replication: ReplicationStream) -> tuple[ReceivedPayloads, HeadraceError]:
    """Return everything that arrives, and the error that ends the replication stream."""
    payloads: list[bytes] = []
    end = 0
    while True:
        try:
            received = await _read(replication)
        except HeadraceError as error:
            return ReceivedPayloads(payloads, end), error
        payloads += received.payloads
        end = received.end


async def _now(connection: SourceConnection) -> int:
    """Return the current end of the WAL, after writing a record.

    The server never reports that it has reached a position that is only the end of a page.
    """
    ((position,),) = await connection.query("select pg_current_wal_flush_lsn()")
    await connection.query("select pg_current_xact_id()")
    return positions.parse(position or "")


async def _confirmed(connection: SourceConnection, slot: str) -> int:
    found = await find_slot(connection, slot)
    assert found is not None
    assert found.confirmed is not None
    return found.confirmed


async def _terminate(connection: SourceConnection) -> None:
    await connection.query(f"select pg_terminate_backend(pid) from {WALSENDERS}")
