"""The functions that read one stream: lease calls use them, and do without where there are none."""

from __future__ import annotations

import pytest

from headrace import store
from headrace.model.specs import StreamSpec
from tests.conftest import Declare
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio

READERS = """
    select p.oid, p.prosrc from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
    where n.nspname = 'headrace_streams' and p.proname like 'read.%'
"""


async def readers(database: store.Database) -> list[str]:
    """The texts of the functions."""
    return [row["prosrc"] for row in await database.fetch(READERS)]


async def relations(database: store.Database) -> list[str]:
    rows = await database.fetch("select relation from headrace_internal.segments order by lower")
    return [row["relation"] for row in rows]


async def test_a_stream_has_a_reader_until_it_is_deleted(database: store.Database, declare: Declare) -> None:
    await declare()
    [text] = await readers(database)
    assert all(relation in text for relation in await relations(database))
    await store.delete_stream(database, "orders", force=True)
    assert await readers(database) == []
    await store.create_stream(database, "orders")
    assert len(await readers(database)) == 1


async def test_a_stream_with_one_message_per_key_has_none(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="latest", one_message_per_key=True))
    assert await readers(database) == []
    assert await store.migrate(database, reinstall=True) == ["installed the server functions"]
    assert await readers(database) == []


@pytest.mark.parametrize(
    "change",
    [
        'drop function headrace_streams."read.1"',
        """create or replace function headrace_streams."read.1"(text, bigint, int, int8multirange, bigint)
           returns headrace_internal.fresh_messages language plpgsql as 'begin return null; end'""",
    ],
)
async def test_a_stream_is_read_without_its_reader(database: store.Database, declare: Declare, change: str) -> None:
    reader = await declare()
    whole = await readers(database)
    await publish(database, "a")
    assert (await reader.lease(limit=1)).seqs == [1]
    await database.fetch(change)
    await publish(database, *(f"k.{number}" for number in range(50)))
    assert (await reader.lease(limit=1)).seqs == [2]
    assert (await reader.lease()).keys == [f"k.{number}" for number in range(1, 50)]
    assert await store.migrate(database, reinstall=True) == ["installed the server functions"]
    assert await readers(database) == whole


async def test_a_reader_knows_the_last_segments_and_older_ones_are_read_without_it(
    database: store.Database, declare: Declare
) -> None:
    """A session keeps the plans of all that it has read, so their number is bounded."""
    reader = await declare()
    await publish(database, *"abc")
    assert (await reader.lease(limit=1)).seqs == [1]
    await database.fetch("""
        insert into headrace_internal.segments (stream_id, lower, upper, relation)
        select id, 10::bigint ^ 12 + n, 10::bigint ^ 12 + n + 1, format('headrace_streams."orders.%s"', 10::bigint ^ 12 + n)
        from headrace_internal.streams, generate_series(1, 7) as n
    """)
    every = await relations(database)
    await database.fetch("select headrace_internal.create_reader(id) from headrace_internal.streams")
    [text] = await readers(database)
    assert [f"'{relation}'" in text for relation in every] == [False] * 3 + [True] * 8
    assert [(await reader.lease(limit=1)).seqs for _ in range(3)] == [[2], [3], []]


async def test_a_segment_that_is_replaced_is_read(database: store.Database, declare: Declare) -> None:
    """Another segment of the same name is another table. A session plans its statement again."""
    reader = await declare()
    await publish(database, "a")
    assert (await reader.lease(limit=1)).seqs == [1]
    first = (await relations(database))[0]
    async with database.transaction() as connection:
        await connection.execute(f"alter table headrace_streams.orders detach partition {first}")
        await connection.execute(f"alter table {first} rename to kept")
        await connection.execute(f"create table {first} (like headrace_streams.kept including all)")
        await connection.execute(
            f"alter table headrace_streams.orders attach partition {first} for values from (1) to (100001)"
        )
    await publish(database, "b")
    assert (await reader.lease(limit=1)).seqs == [2]
