"""Composite types that are altered during capture. No value is published under names that do not fit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from headrace import store
from headrace.sources.postgres.capture.schema_cache import SchemaCache
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.spec import PostgresSpec
from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop
from tests.sources.postgres.test_table_watch import QUICK, copy, until_rows

pytestmark = pytest.mark.asyncio

MODES = pytest.mark.parametrize("mode", ["changes", "rows"])


@pytest_asyncio.fixture
async def shop(dsn: str) -> AsyncIterator[Shop]:
    async with Shop.opened(dsn) as shop:
        await shop.sql.execute(
            """create type pair as (a int, b text); create table items (id int primary key, p pair, l pair[]);
               insert into items values (1, (1, 'one'), array[(1, 'one')::pair])"""
        )
        yield shop


async def made(shop: Shop, mode: str, **settings: Any) -> None:
    settings = {"tables": ("public.items",), "mode": mode, "backfill": True, **settings}
    await shop.source(**settings)


async def values(shop: Shop, id_: int) -> list[Any]:
    """Return all values of a row's column that were published, in order."""
    return [one["record"]["p"] for one in await shop.stream() if one["record"] and one["record"]["id"] == id_]


async def until_last(shop: Shop, id_: int, value: Any) -> None:
    await until_rows(shop, "items", lambda rows: id_ in rows and rows[id_]["p"] == value)


ALTERATIONS = {
    "an attribute is added": ("alter type pair add attribute c int", {"a": 1, "b": "one", "c": None}, {"a": 2, "b": "two", "c": 3}, "(2, 'two', 3)"),
    "one is renamed": ("alter type pair rename attribute b to z", {"a": 1, "z": "one"}, {"a": 2, "z": "two"}, "(2, 'two')"),
    "one is dropped": ("alter type pair drop attribute a", {"b": "one"}, {"b": "two"}, "row('two')"),
    "names are swapped": (
        "alter type pair rename attribute a to x; alter type pair rename attribute b to a; alter type pair rename attribute x to b",
        {"b": 1, "a": "one"}, {"b": 2, "a": "two"}, "(2, 'two')",
    ),
    "one is dropped and another added": (
        "alter type pair drop attribute b; alter type pair add attribute c text", {"a": 1, "c": None}, {"a": 2, "c": "two"}, "(2, 'two')",
    ),
}  # fmt: skip


@MODES
@pytest.mark.parametrize("alteration", ALTERATIONS)
async def test_rows_and_changes_have_the_new_names_without_a_restart(shop: Shop, mode: str, alteration: str) -> None:
    statement, old_row, new_row, new_value = ALTERATIONS[alteration]
    await made(shop, mode)
    async with shop.captured(QUICK):
        await until_last(shop, 1, {"a": 1, "b": "one"})
        await shop.sql.execute(statement)
        await shop.sql.execute(f"insert into items values (2, {new_value}, array[{new_value}::pair])")
        await until_last(shop, 2, new_row)
        await until_last(shop, 1, old_row)
        found = await copy(shop, "items")
        assert (found[1]["l"], found[2]["l"]) == ([old_row], [new_row])
        assert await shop.sql.fetchval("select count(*) from headrace_internal.capture_failures") == 0


@MODES
@pytest.mark.parametrize("alteration", ALTERATIONS)
async def test_values_from_before_and_after_an_alteration_that_was_not_seen_are_text_until_the_rows_are_read(
    shop: Shop, mode: str, alteration: str
) -> None:
    statement, old_row, new_row, new_value = ALTERATIONS[alteration]
    await made(shop, mode)
    async with shop.captured(QUICK):
        await until_last(shop, 1, {"a": 1, "b": "one"})
    await shop.sql.execute("insert into items values (3, (1, 'one'))")
    await shop.sql.execute(statement)
    await shop.sql.execute(f"insert into items values (4, {new_value})")
    async with shop.captured(QUICK):
        await until_last(shop, 3, old_row)
        await until_last(shop, 4, new_row)
        await shop.sql.execute(f"insert into items values (5, {new_value})")
        await until_last(shop, 5, new_row)
    for id_, right in ((3, old_row), (4, new_row)):
        assert all(value == right or isinstance(value, str) for value in await values(shop, id_))
    assert await values(shop, 5) == [new_row]


async def test_a_transaction_from_before_an_alteration_publishes_text_and_the_rows_are_read_after_it(
    shop: Shop,
) -> None:
    await made(shop, "changes")
    other = await asyncpg.connect(shop.dsn)
    try:
        async with shop.captured(QUICK):
            await until_last(shop, 1, {"a": 1, "b": "one"})
            transaction = other.transaction()
            await transaction.start()
            await other.execute("insert into items values (3, (1, 'one'))")
            statement = "alter type pair drop attribute b; alter type pair add attribute c text"
            await shop.sql.execute(statement)

            async def is_noted() -> bool:
                info = (await store.source(shop.database, "shop")).capture
                return info is not None and "pair was altered" in (info.reason or "")

            await eventually(is_noted)
            await transaction.commit()
            await until_last(shop, 3, {"a": 1, "c": None})
            await until_last(shop, 1, {"a": 1, "c": None})
        first, *later = await values(shop, 3)
        assert first == "(1,one)"
        assert later == [{"a": 1, "c": None}]
    finally:
        await other.close()


async def test_what_is_unsure_stays_so_over_another_restart(shop: Shop) -> None:
    await made(shop, "changes")
    async with shop.captured(QUICK):
        await until_last(shop, 1, {"a": 1, "b": "one"})
    await shop.sql.execute("insert into items values (3, (1, 'one'))")
    await shop.sql.execute("alter type pair drop attribute b; alter type pair add attribute c text")
    async with shop.captured(QUICK):
        await until_last(shop, 3, {"a": 1, "c": None})
    known = json.loads(await shop.sql.fetchval("select fingerprint::text from headrace_internal.captured_tables"))
    assert list(known["altered"].values())
    # The position is put back, as it is after a failover: the values are captured once more.
    assert "(1,one)" in await values(shop, 3)


@asynccontextmanager
async def looked_up(dsn: str) -> AsyncIterator[tuple[SchemaCache, SourceConnection]]:
    """The cache of the tables and types, and its connection."""
    cache = SchemaCache(PostgresSpec(name="shop", stream="shop", tables=("public.items",)))
    async with await SourceConnection.connect(dsn, application_name="test") as connection:
        await cache.refresh(connection, {})
        yield cache, connection


def kind(cache: SchemaCache, name: str, xid: int) -> str:
    """Return the kind of a type in a transaction's values."""
    return next(one.kind for one in cache.types_of(xid & 0xFFFFFFFF).values() if one.name == name)


async def test_a_transaction_that_no_snapshot_sees_so_far_has_the_present_definition(shop: Shop) -> None:
    """A commit is captured before others see it, so a look may come in between."""
    async with looked_up(shop.dsn) as (cache, connection), shop.sql.transaction():
        xid = await shop.sql.fetchval("select pg_current_xact_id()::text::bigint")
        await cache.look_at_types(connection)
        assert kind(cache, "pair", xid) == kind(cache, "pair", xid + 100) == "composite"


async def test_an_older_definition_is_possible_in_each_transaction_that_began_before_the_look(shop: Shop) -> None:
    """Also in one that began after the one that has altered the type."""
    other = await asyncpg.connect(shop.dsn)
    try:
        async with looked_up(shop.dsn) as (cache, connection), other.transaction():
            async with shop.sql.transaction():
                await shop.sql.execute("select pg_current_xact_id()")
                xid = await other.fetchval("select pg_current_xact_id()::text::bigint")
                await other.execute("insert into items values (3, (1, 'one'))")
                await shop.sql.execute("alter type pair rename attribute b to z")
            assert kind(cache, "pair", xid) == "composite"
            await cache.look_at_types(connection)
            assert kind(cache, "pair", xid) == "base"
            assert kind(cache, "pair", xid + 100) == "composite"
    finally:
        await other.close()


async def test_a_table_as_a_type_is_looked_at_too(shop: Shop) -> None:
    await shop.sql.execute("create table other (a int, b text); alter table items add o other")
    await made(shop, "rows")
    async with shop.captured(QUICK):
        await until_last(shop, 1, {"a": 1, "b": "one"})
        await shop.sql.execute(
            "alter table other drop b, add c int; insert into items values (2, (2, 'two'), null, (5, 6))"
        )
        await until_rows(shop, "items", lambda rows: 2 in rows and rows[2]["o"] == {"a": 5, "c": 6})


async def test_a_label_of_an_enum_that_is_renamed_comes(shop: Shop) -> None:
    await shop.sql.execute("create type mood as enum ('sad', 'happy'); alter table items add m mood default 'sad'")
    await made(shop, "rows")
    async with shop.captured(QUICK):
        await until_rows(shop, "items", lambda rows: 1 in rows and rows[1]["m"] == "sad")
        await shop.sql.execute("alter type mood rename value 'sad' to 'blue'")
        await until_rows(shop, "items", lambda rows: rows[1]["m"] == "blue")
