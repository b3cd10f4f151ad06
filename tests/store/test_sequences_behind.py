"""Sequences that are behind the numbers in use are detected before messages are lost, and one
statement repairs all of them."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from headrace import store, sweep
from headrace.embedded.binaries import find_installation
from headrace.model.errors import SequenceBehind
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.runtime.maintenance.sweeper import Sweeper
from headrace.testing.databases import on_server
from tests.conftest import Declare
from tests.runtime.running import eventually
from tests.support.clusters import cluster
from tests.support.readers import Clock, Reader, publish

pytestmark = pytest.mark.asyncio

MEND = "select sequence, stands_at from headrace.mend_sequences()"
SEQUENCE = """headrace_streams."orders.seq" """.strip()


async def behind(executor: store.Executor) -> dict[str, tuple[int, int]]:
    """The sequences that are behind: their current values, and the values that they should have."""
    return {row[0]: (row[1], row[2]) for row in await executor.fetch("select * from headrace.sequences_behind()")}


@pytest.mark.process
@pytest.mark.skipif(find_installation().major < 15, reason="publications have whole schemas from PostgreSQL 15 on")
async def test_a_server_filled_by_logical_replication_loses_nothing_and_reports_the_repair(tmp_path: Path) -> None:
    with cluster(tmp_path / "postgres", wal_level="logical") as server:
        first = store.Database(server.url())
        await first.open()
        await store.migrate(first)
        await store.create_stream(first, "orders")
        spec, clock = ConsumerSpec(stream="orders", name="ship"), Clock()
        number = (await store.declare_consumer(first, spec)).id
        await first.drain()
        boss = await asyncpg.connect(on_server(server.url(), "postgres"))
        await boss.execute("create database second template headrace")
        await first.open()
        second = store.Database(on_server(server.url(), "second"))
        await second.open()
        try:
            await first.fetch(
                """create publication everything
                   for tables in schema headrace_streams, table headrace_internal.cursors, headrace_internal.leases, headrace_internal.parked"""
            )
            await first.fetch("select pg_create_logical_replication_slot('moving', 'pgoutput')")
            dsn = await first.fetchrow(
                "select current_setting('unix_socket_directories'), current_setting('port'), current_user"
            )
            await second.fetch(
                f"""create subscription moving connection 'host={dsn[0]} port={dsn[1]} user={dsn[2]} dbname=headrace'
                    publication everything with (create_slot = false, slot_name = 'moving', copy_data = false)"""
            )
            old, new = (Reader(database, spec, number, clock) for database in (first, second))
            for _ in range(40):
                await publish(first, *"abcde")
                await old.ack_all(await old.lease())
            held = await old.lease()
            assert held.lease_id is None
            cursor = "select max(version) from headrace_internal.cursors"
            there = await first.fetchval(cursor)

            async def arrived() -> bool:
                return bool(await second.fetchval(cursor) == there)

            await eventually(arrived)
            await second.fetch("alter subscription moving disable")
            await eventually(lambda: boss.fetchval("select not active from pg_replication_slots"))
            await second.fetch("drop subscription moving")

            with pytest.raises(
                SequenceBehind, match=r'"orders.seq" stands at 0.*up to 200.*select headrace.mend_sequences\(\)'
            ):
                await new.lease()
            with pytest.raises(SequenceBehind, match=r"select headrace.mend_sequences\(\)"):
                await publish(second, "f")
            assert set(await behind(second)) == {"headrace_internal.lease_ids", SEQUENCE}
            await second.fetch(MEND)
            assert await behind(second) == {}
            await publish(second, *"fgh")
            batch = await new.lease()
            assert batch.keys == ["f", "g", "h"]
            assert await new.nack(batch, *batch.seqs) == []
            assert (await new.lease()).keys == ["f", "g", "h"]
        finally:
            await first.close()
            await second.close()
            await boss.close()


async def test_leases_below_the_floor_are_refused(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ab")
    for _ in range(2):
        await reader.ack_all(await reader.lease(limit=1))
    await publish(database, "c")
    await database.fetch("select setval('headrace_internal.lease_ids', 1, false)")
    with pytest.raises(SequenceBehind, match="lease_ids stands at 1, and numbers up to 2 were"):
        await reader.lease()
    await database.fetch(MEND)
    assert (await reader.lease()).keys == ["c"]


async def test_messages_below_the_cursors_are_refused_where_no_unique_key_refuses_them(
    database: store.Database,
) -> None:
    """With one message per key, and behind messages that were removed."""
    await store.create_stream(database, StreamSpec(name="rows", one_message_per_key=True))
    for _ in range(5):
        await publish(database, *"ab", stream="rows")
    await database.fetch("""select setval('headrace_streams."rows.seq"', 2)""")
    with pytest.raises(SequenceBehind, match=r"""select setval\('headrace_streams."rows.seq"', 10\)"""):
        await publish(database, *"bc", stream="rows")
    assert await database.fetchval("select max(seq) from headrace_streams.rows") == 10
    await database.fetch("""select setval('headrace_streams."rows.seq"', 10)""")
    await publish(database, *"bc", stream="rows")
    assert await database.fetchval("select max(seq) from headrace_streams.rows") == 12


async def test_the_seqs_of_removed_messages_still_count_as_used(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcde")
    await reader.ack_all(await reader.lease())
    await database.fetch("delete from headrace_streams.orders")
    await database.fetch(f"select setval('{SEQUENCE}', 1, false)")
    await publish(database, "f")
    with pytest.raises(SequenceBehind, match="stands at 1, and numbers up to 5"):
        await reader.lease()
    assert await behind(database) == {SEQUENCE: (1, 5)}


@pytest.mark.parametrize("compacted", [False, True])
async def test_publishing_is_refused_before_a_number_is_drawn_that_lies_in_a_gap(
    database: store.Database, compacted: bool
) -> None:
    """No primary key refuses it there. Each attempt would draw another number, until one lies in a gap."""
    await store.create_stream(database, StreamSpec(name="orders", one_message_per_key=compacted))
    spec = ConsumerSpec(stream="orders", name="ship")
    reader = Reader(database, spec, (await store.declare_consumer(database, spec)).id, Clock())
    await publish(database, *"abcdefghij")
    await sweep(database)
    assert await reader.drain() == list(range(1, 11))
    await database.fetch("delete from headrace_streams.orders where seq < 9")
    await database.fetch(f"select setval('{SEQUENCE}', 1, false)")
    for _ in range(3):
        with pytest.raises(SequenceBehind, match=r"stands at 0, and numbers up to 10 .*mend_sequences"):
            await publish(database, "new", "newer")
        with pytest.raises(SequenceBehind, match="stands at 0"):
            await store.publish(database, "orders", "new", "{}")
        with pytest.raises(SequenceBehind, match="stands at 0"):
            await store.publish(database, "orders", "new", "{}", options=PublishOptions(message_id="once"))
    assert await behind(database) == {SEQUENCE: (0, 10)}, "an attempt has drawn a number"
    await database.fetch(MEND)
    await publish(database, "new")
    assert await reader.drain() == [11]


async def test_the_number_in_a_streams_row_is_seldom_written(database: store.Database, declare: Declare) -> None:
    await declare()
    versions = set()
    sweeper = Sweeper(database)
    for _ in range(64):
        await publish(database, "a")
        await sweeper.sweep()
        versions.add(tuple(await database.fetchrow("select drawn, xmin::text from headrace_internal.streams")))
    assert [drawn for drawn, _ in sorted(versions)] == [1, 2, 4, 8, 16, 32, 64]


async def test_rows_with_a_used_number_are_refused_with_the_statement_that_repairs_it(
    database: store.Database, declare: Declare
) -> None:
    for name in ("ship", "bill"):
        await declare(name)
    await store.create_stream(database, "invoices")
    sequences = {"headrace_internal.consumers_id_seq": (0, 2), "headrace_internal.streams_id_seq": (0, 2)}
    for sequence in sequences:
        await database.fetch(f"select setval('{sequence}', 1, false)")
    assert await behind(database) == sequences
    for attempt in (lambda: declare("audit"), lambda: store.create_stream(database, "receipts")):
        with pytest.raises(SequenceBehind, match="mend_sequences"):
            await attempt()
    await database.fetch(MEND)
    await declare("audit")
    await store.create_stream(database, "receipts")


async def test_a_number_that_no_segment_may_have_is_refused_in_the_same_way(database: store.Database) -> None:
    """Whatever language the server speaks."""
    await store.create_stream(database, StreamSpec(name="orders", max_storage=1_000_000))
    first = await database.fetchval("select relation from headrace_internal.segments order by lower limit 1")
    await database.fetch(f"drop table {first}")
    with pytest.raises(SequenceBehind, match="mend_sequences"):
        await database.fetch("insert into headrace_streams.orders (key, data) values ('a', '{}')")


async def test_no_correct_state_is_reported_as_behind(database: store.Database, declare: Declare) -> None:
    for name, settings in (
        ("fresh", {}), ("new", {"deliver_policy": "new"}), ("ahead", {"deliver_policy": "by_start_seq", "start_seq": 5}),
    ):  # fmt: skip
        reader = await declare(name, **settings)
        assert (await reader.lease()).lease_id is None
        assert await behind(database) == {}
    await publish(database, *"abcd")
    assert (await reader.lease()).lease_id is None
    await publish(database, *"ef")
    assert (await reader.lease()).seqs == [5, 6]
    await store.seek(database, reader.id, 100)
    assert (await reader.lease()).lease_id is None
    await store.seek(database, reader.id, None)
    await database.fetch(f"alter sequence {SEQUENCE} restart with 40")  # an operator repairs it like this by hand
    assert (await reader.lease()).lease_id is None
    await publish(database, "g")
    assert (await reader.lease()).seqs == [40]
    async with database.transaction() as connection:
        await publish(connection, "late")
        assert (await reader.lease()).lease_id is None
    assert (await reader.lease()).seqs == [41]
    assert await behind(database) == {}
