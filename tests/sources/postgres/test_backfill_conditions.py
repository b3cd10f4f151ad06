"""Conditions on rows, as SQL that the captured database evaluates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from headrace import store
from headrace.model.conditions import parse
from headrace.model.errors import InvalidFilter
from headrace.sources.postgres.backfill.row_conditions import check_condition, compile_condition
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog
from headrace.sources.postgres.tables import Table
from tests.sources.postgres.backfilling import Capture

pytestmark = pytest.mark.asyncio

ITEMS = """
    create type mood as enum ('sad', 'fine', 'glad');
    create table items (
        id int primary key, small smallint, large bigint, exact numeric, real real, double double precision, yes boolean,
        "Odd words" text, at timestamptz, day date, ident uuid, mood mood, doc jsonb, plain json, tags text[]);
    insert into items values
        (1, 1, 9007199254740993, 1.10, 0.1, 0.1, true, 'Paid', '2030-01-01 12:00Z', '2030-01-01', '11111111-1111-1111-1111-111111111111',
         'sad', '{"a": {"b": 1.0}, "list": ["x", "y"], "s": "text", "t": true, "n": null}', '{"s": "5"}', '{a}'),
        (2, 2, 2, 2, 2, 2, false, 'open%', '2030-01-02 12:00Z', '2030-01-02', '22222222-2222-2222-2222-222222222222',
         'fine', '{"a": {"b": "1"}, "s": "5", "t": "true"}', '{"s": 5}', '{b,c}'),
        (3, 3, 3, 'NaN', 'NaN', 'infinity', null, '', 'infinity', '4713-01-01 BC', null, 'glad', '[1, 2]', '"text"', '{}'),
        (4, null, null, null, null, null, null, null, null, null, null, null, null, null, null);
"""


@pytest_asyncio.fixture
async def connection(dsn: str) -> AsyncIterator[SourceConnection]:
    async with await SourceConnection.connect(dsn, application_name="test") as connection:
        await connection.query(ITEMS)
        yield connection


WORDS = 'data.record."Odd words"'


async def items(connection: SourceConnection) -> Table:
    return (await catalog.load_tables(connection, ["public.items"]))["public.items"]


async def chosen(connection: SourceConnection, where: str) -> list[int]:
    sql, params = compile_condition(where, await items(connection))
    return [
        int(id_ or 0) for (id_,) in await connection.query(f"select id from items where {sql} order by id", *params)
    ]


_CHOSEN: list[tuple[str, list[int] | None]] = [
    # numbers, compared by value
    ("data.record.id = 2", [2]),
    ("data.record.id = 2.0", [2]),
    ("data.record.id > 1.5", [2, 3, 4]),
    ("data.record.id < 99999999999999999999999", [1, 2, 3, 4]),
    ("data.record.small >= 2", [2, 3]),
    ("data.record.small < 40000", [1, 2, 3]),
    ("data.record.large = 9007199254740993", [1]),
    ("data.record.exact = 1.1", [1]),
    ("data.record.exact != 1.1", [2, 3]),
    ("data.record.real = 0.1", [1]),
    ("data.record.double = 0.1", [1]),
    ("data.record.id in (1, 3.0, 7.5)", [1, 3]),
    ("data.record.small not in (1, 7.5)", [2, 3]),
    # null satisfies only `is null` and negated conditions
    ("data.record.small is null", [4]),
    ("data.record.small is not null", [1, 2, 3]),
    ("not data.record.small = 1", [2, 3, 4]),
    ("not data.record.small != 1", [1, 4]),
    ("not (data.record.small = 1 or data.record.small = 2)", [3, 4]),
    ("not not data.record.small = 1", [1]),
    ("not data.record.small in (1, 2)", [3, 4]),
    # booleans
    ("data.record.yes = true", [1]),
    ("data.record.yes != true", [2]),
    # texts
    (f"{WORDS} = 'Paid'", [1]),
    (f"{WORDS} = ''", [3]),
    (f"{WORDS} like 'open\\%'", [2]),
    (f"{WORDS} like '%'", [1, 2, 3]),
    (f"{WORDS} ilike 'pAID'", [1]),
    (f"{WORDS} regex '^[Po]'", [1, 2]),
    (f"not {WORDS} regex '^[Po]'", [3, 4]),
    (f"{WORDS} = 'x'' or true --'", []),
    # columns with a type of their own, compared in that type
    ("data.record.at > '2030-01-01T13:30:00+01:00'", [2, 3]),
    ("data.record.at = '2030-01-01 13:00+01'", [1]),
    ("data.record.day < '2030-01-01'", [3]),
    ("data.record.ident = '11111111-1111-1111-1111-11111111 1111'", None),
    ("data.record.ident = '{11111111-1111-1111-1111-111111111111}'", [1]),
    ("data.record.ident like '2222%'", [2]),
    ("data.record.mood >= 'fine'", [2, 3]),
    ("data.record.tags = '{b,c}'", [2]),
    # paths in documents, as in conditions of streams
    ("data.record.doc.a.b = 1", [1]),
    ("data.record.doc.a.b = '1'", [2]),
    ("data.record.doc.a.b > 0.5", [1]),
    ("data.record.doc.a.b != 1", [2]),
    ("data.record.doc.a.b in (1, '1')", [1, 2]),
    ("data.record.doc.a.b not in (2, '1')", [1]),
    ("not data.record.doc.a.b = 1", [2, 3, 4]),
    ("data.record.doc.t = true", [1]),
    ("data.record.doc.n is null", [1, 2, 3, 4]),
    ("data.record.doc.list.1 = 'y'", [1]),
    ("data.record.doc.1 = 2", [3]),
    ("data.record.doc.s like 't%'", [1]),
    ("data.record.doc is null", [4]),
    ("data.record.plain.s = 5", [2]),
    ("data.record.plain.s > '4'", [1]),
    ("data.record.plain = 'text'", [3]),
    # combined conditions
    ("data.record.id > 1 and (data.record.yes = false or data.record.mood = 'glad')", [2, 3]),
]


async def test_a_condition_chooses_rows(connection: SourceConnection) -> None:
    for where, ids in _CHOSEN:
        if ids is None:
            with pytest.raises(Exception, match="invalid input syntax"):
                await chosen(connection, where)
        else:
            assert await chosen(connection, where) == ids


_IMPOSSIBLE: list[tuple[str, str]] = [
    ("data.total > 1", "condition can't use data.total. It can use columns, such as data.record.id"),
    ("data.action = 'insert'", "It can use columns, such as data.record.id"),
    ("key = 'a'", "It can use columns, such as data.record.id"),
    ("data.record is null", "It can use columns, such as data.record.id"),
    ("data.record.nothing = 1", "public.items has no column 'nothing'. It has id, small"),
    ("data.record.at.year = 1", "neither json nor jsonb"),
    ("data.record.id = '1'", "Write the value without quotes"),
    ("data.record.at > 5", "Write the value in quotes"),
    ("data.record.id = true", "the column is not a boolean"),
    ("data.record.yes = 'true'", "Write true or false"),
    ("data.record.id like '1%'", "which is not text"),
    ("data.record.yes regex 't'", "which is not text"),
]


async def test_a_condition_that_the_table_cannot_evaluate_is_refused_with_a_hint(connection: SourceConnection) -> None:
    for where, expected in _IMPOSSIBLE:
        with pytest.raises(InvalidFilter, match=r"^The backfill.s condition .*\.$") as caught:
            check_condition(where, await items(connection))
        assert expected in str(caught.value)


async def test_no_condition_is_none(connection: SourceConnection) -> None:
    check_condition(None, await items(connection))


async def test_a_number_of_a_key_stays_in_its_type_so_that_an_index_serves(connection: SourceConnection) -> None:
    sql, params = compile_condition("data.record.id = 2", await items(connection))
    await connection.query("set enable_seqscan = off")
    plan_rows = await connection.query(f"explain select from items where {sql}", *params)
    assert any("Index Cond: (id = 2)" in str(line) for (line,) in plan_rows), plan_rows


async def test_a_part_of_a_table_is_backfilled(database: store.Database) -> None:
    await database.fetch("create table items (id int primary key, n int, name text)")
    await database.fetch("insert into items select i, i % 10, 'item ' || i from generate_series(1, 2500) as i")
    await database.fetch("analyze items")
    where: Any = {
        "and": [
            {"field": "data.record.n", "op": "=", "value": 3},
            {"field": "data.record.name", "op": "!=", "value": "item 3"},
        ]
    }
    parse(where)
    async with Capture.opened(database) as capture:
        info = await capture.all_of(await capture.request_backfill(where=where))
        assert (info.state, info.read, info.published) == ("done", 249, 249)
        assert info.where == where
        assert info.total is not None
        assert 200 < info.total < 300
        assert [one["record"]["id"] for one in await capture.messages()] == list(range(13, 2500, 10))
