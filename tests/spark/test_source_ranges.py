"""The queries of the readers to the database, without Spark."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace import store
from headrace.model.errors import InvalidInput, SchemaError, StoreUnavailable, UnknownStream
from headrace.model.specs import StreamSpec
from headrace_spark.source.options import Options
from headrace_spark.source.queries import Queries
from headrace_spark.source.ranges import Ranges
from tests.conftest import Connect
from tests.spark.filling import in_segments
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio

COLUMNS = ("seq", "key")


@contextmanager
def ranges(dsn: str, patience: float = 0.0, **options: str) -> Iterator[Ranges]:
    parsed = Options.of({"database": dsn, "stream": "orders", **options})
    queries = Queries(parsed.place, patience=patience)
    try:
        yield Ranges(queries, parsed, "orders")
    finally:
        queries.close()


async def hang_up(database: store.Database) -> None:
    """End the connections of the data source."""
    await database.fetch(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
        " where datname = current_database() and application_name = 'headrace spark'"
    )


async def test_a_connection_that_breaks_is_made_anew_while_there_is_patience(
    dsn: str, database: store.Database
) -> None:
    await store.create_stream(database, "orders")
    for patience in (60.0, 0.0):
        with ranges(dsn, patience) as asked:
            uid = await asyncio.to_thread(asked.uid)
            await hang_up(database)
            if patience:
                assert await asyncio.to_thread(asked.uid) == uid
            else:
                with pytest.raises(StoreUnavailable, match=r"terminating connection|can't be reached"):
                    await asyncio.to_thread(asked.uid)
                assert await asyncio.to_thread(asked.uid) == uid


async def test_settling_ends_when_the_publisher_does(dsn: str, database: store.Database, connect: Connect) -> None:
    await store.create_stream(database, "orders")
    connection = await connect()
    late = connection.transaction()
    await late.start()
    await publish(connection, "late")
    await publish(database, "a")
    with ranges(dsn) as asked:
        assert asked.mark() == 2
        assert not asked.settle(2, 0.0)
        assert asked.marks.position == 0
        assert "process" in asked.holders()
        waiting = asyncio.create_task(asyncio.to_thread(asked.settle, 2, 60.0))
        await late.commit()
        assert await waiting
        assert (asked.marks.position, asked.marks.open) == (2, frozenset())
        assert asked.holders() == "a process that has just ended"


async def test_a_range_is_cut_as_finely_as_is_worth_it(dsn: str, database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, *(f"k.{n}" for n in range(30)))
    with ranges(dsn) as asked, ranges(dsn, partitions="4") as finely:
        assert len(asked.parts(None, 30, COLUMNS)) == 1
        assert [(part.first, part.last) for part in finely.parts(1, 30, COLUMNS)] == [
            (1, 8),
            (9, 16),
            (17, 24),
            (25, 30),
        ]
        assert asked.parts(31, 30, COLUMNS) == []


async def test_what_can_not_be_read_is_reported(dsn: str, empty_dsn: str, database: store.Database) -> None:
    with ranges(dsn) as asked:
        with pytest.raises(UnknownStream, match="There is no stream 'orders'"):
            asked.start("earliest")
        await store.create_stream(database, "orders")
        with pytest.raises(InvalidInput, match="Write latest, a seq, or a time"):
            asked.end("earliest")
    with ranges(empty_dsn) as empty, pytest.raises(SchemaError, match="Run `headrace migrate`"):
        empty.start("earliest")


async def test_filters_with_odd_characters_reach_the_database_as_they_are(dsn: str, database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, 'a"b', r"a\b", "a'b", "a,b")
    for key, seq in (('a"b', 1), (r"a\b", 2), ("a'b", 3)):
        with ranges(dsn, filter=key) as asked:
            [part] = asked.parts(None, 4, COLUMNS)
        assert [row["seq"] for row in await database.fetch(part.query)] == [seq]


@pytest.mark.parametrize("one_message_per_key", [True, False])
async def test_sparse_seqs_are_cut_by_the_messages_that_are_there(
    dsn: str, database: store.Database, one_message_per_key: bool
) -> None:
    """The seqs of updated keys, of removed messages and of rolled-back publishes are empty."""
    stream = await store.create_stream(database, StreamSpec(name="orders", one_message_per_key=one_message_per_key))
    await publish(database, *(f"old.{n}" for n in range(100)))
    sequence = await database.fetchval("select sequence from headrace_internal.streams where id = $1", stream)
    await database.fetch(f"select setval('{sequence}', 1000000)")
    await publish(database, *(f"new.{n}" for n in range(3000)))
    with ranges(dsn, partitions="4") as asked:
        parts = asked.parts(None, 1_003_000, COLUMNS)
    assert [part.last + 1 for part in parts[:-1]] == [part.first for part in parts[1:]]
    assert (parts[0].first, parts[-1].last) == (1, 1_003_000)
    counts = [len(await database.fetch(part.query)) for part in parts]
    assert sum(counts) == 3100
    assert len(counts) == 4
    assert max(counts) - min(counts) <= 1


async def test_a_part_is_read_from_its_segments_alone(dsn: str, database: store.Database) -> None:
    await in_segments(database)
    await publish(database, *(f"k.{n}" for n in range(100)))
    with ranges(dsn, partitions="5") as asked:
        parts = asked.parts(None, 100, COLUMNS)
    plan = "\n".join(row[0] for row in await database.fetch(f"explain {parts[1].query}"))
    assert parts[1].first == 21
    assert len(set(re.findall(r"on (?:\w+\.)?(\S*orders\S*) ", plan))) == 2, plan
