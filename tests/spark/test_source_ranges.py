"""The queries of the readers to the database, without Spark."""

from __future__ import annotations

import asyncio

import pytest

from headrace import store
from headrace.model.errors import InvalidInput, SchemaError, StoreUnavailable, UnknownStream
from headrace_spark.source.marks import Marks
from headrace_spark.source.options import Options
from headrace_spark.source.ranges import Ranges
from tests.conftest import Connect
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio

COLUMNS = ("seq", "key")


def ranges(dsn: str, patience: float = 0.0, **options: str) -> Ranges:
    return Ranges(Options.of({"database": dsn, "stream": "orders", **options}), patience=patience)


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
        asked = ranges(dsn, patience)
        try:
            uid = await asyncio.to_thread(asked.uid)
            await hang_up(database)
            if patience:
                assert await asyncio.to_thread(asked.uid) == uid
            else:
                with pytest.raises(StoreUnavailable, match=r"terminating connection|can't be reached"):
                    await asyncio.to_thread(asked.uid)
                assert await asyncio.to_thread(asked.uid) == uid
        finally:
            asked.close()


async def test_settling_ends_when_the_publisher_does(dsn: str, database: store.Database, connect: Connect) -> None:
    await store.create_stream(database, "orders")
    connection = await connect()
    late = connection.transaction()
    await late.start()
    await publish(connection, "late")
    await publish(database, "a")
    asked, marks = ranges(dsn), Marks()
    try:
        assert asked.mark(marks) == 2
        assert not asked.settle(marks, 2, 0.0)
        assert marks.position == 0
        assert "process" in asked.holders(marks)
        waiting = asyncio.create_task(asyncio.to_thread(asked.settle, marks, 2, 60.0))
        await late.commit()
        assert await waiting
        assert (marks.position, marks.open) == (2, frozenset())
        assert asked.holders(marks) == "a process that has just ended"
    finally:
        asked.close()


async def test_a_range_is_cut_as_finely_as_is_worth_it(dsn: str, database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, *(f"k.{n}" for n in range(30)))
    asked, finely = ranges(dsn), ranges(dsn, partitions="4")
    try:
        assert len(asked.parts(None, 30, COLUMNS)) == 1
        assert [(part.first, part.last) for part in finely.parts(1, 30, COLUMNS)] == [
            (1, 8),
            (9, 16),
            (17, 24),
            (25, 30),
        ]
        assert asked.parts(31, 30, COLUMNS) == []
    finally:
        asked.close()
        finely.close()


async def test_what_can_not_be_read_is_reported(dsn: str, empty_dsn: str, database: store.Database) -> None:
    asked = ranges(dsn)
    try:
        with pytest.raises(UnknownStream, match="There is no stream 'orders'"):
            asked.start("earliest")
        await store.create_stream(database, "orders")
        with pytest.raises(InvalidInput, match="Write latest, a seq, or a time"):
            asked.end("earliest")
    finally:
        asked.close()
    empty = ranges(empty_dsn)
    try:
        with pytest.raises(SchemaError, match="Run `headrace migrate`"):
            empty.start("earliest")
    finally:
        empty.close()


async def test_filters_with_odd_characters_reach_the_database_as_they_are(dsn: str, database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await publish(database, 'a"b', r"a\b", "a'b", "a,b")
    for key, seq in (('a"b', 1), (r"a\b", 2), ("a'b", 3)):
        asked = ranges(dsn, filter=key)
        try:
            [part] = asked.parts(None, 4, COLUMNS)
        finally:
            asked.close()
        assert [row["seq"] for row in await database.fetch(part.query)] == [seq]
