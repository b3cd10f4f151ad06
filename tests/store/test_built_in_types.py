"""A new connection does not ask the server about types that come with Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from headrace.store.connections import built_in_types
from headrace.store.connections.connection import Connection
from tests.conftest import Connect
from tests.support import servers

pytestmark = pytest.mark.asyncio

VALUES = """select array[7::bigint, null], array['{"a": 1}'::json], array['{"a": 1}'::jsonb], array[1::smallint], array[1::int],
                   array['x'::text], array['x'::varchar], array[true], array['\\x00ff'::bytea], array[1.5::float4],
                   array[1.5::float8], array[1.5::numeric], array[timestamptz '2030-01-01 00:00Z', null],
                   array[timestamp '2030-01-01 00:00'], array[date '2030-01-01'], array[time '12:30'], array[interval '1 day'],
                   array['7b6c5a52-0000-4000-8000-000000000000'::uuid], array[[1::bigint, 2], [3, 4]],
                   int4range(1, 5), int8range(1, null), numrange(1.5, 2.5), daterange('2030-01-01', '2030-02-01'),
                   tsrange('2030-01-01', null), tstzrange(null, '2030-01-01 00:00Z'), '{[1,3),[5,)}'::int8multirange,
                   '{[1,3)}'::int4multirange, '{}'::nummultirange, '{[2030-01-01,2030-02-01)}'::datemultirange,
                   '{[2030-01-01,)}'::tsmultirange, '{[2030-01-01,)}'::tstzmultirange"""


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The types that the server is asked about."""
    asked: list[list[int]] = []
    ask = asyncpg.Connection._introspect_types

    async def noted(self: Any, oids: list[int], timeout: float | None) -> Any:
        asked.append(sorted(oids))
        return await ask(self, oids, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", noted)
    return asked


@pytest_asyncio.fixture
async def connection(empty_dsn: str) -> AsyncIterator[Any]:
    """A new connection of the store."""
    async with servers.opened(empty_dsn) as database, database.connections.connection() as connection:
        yield connection


async def test_each_description_is_the_one_of_the_server(connect: Connect) -> None:
    plain = await connect()
    for oid, row in built_in_types._BUILT_IN.items():
        rows, _ = await plain._introspect_types([oid], None)
        [found] = [dict(one) for one in rows if one["oid"] == oid]
        assert row == found


async def test_values_are_those_that_asyncpg_reads_and_the_server_is_not_asked(
    connection: Any, connect: Connect, questions: list[list[int]]
) -> None:
    found = await connection.fetchrow(VALUES)
    assert questions == []
    plain = await connect()
    assert found == await plain.fetchrow(VALUES)
    assert len(questions) > 0


async def test_values_are_sent_as_asyncpg_sends_them(connection: Any, questions: list[list[int]]) -> None:
    values = [1, 2, None], ['{"a": 1}', "[]"], [1.5], [asyncpg.Range(1, 3)]
    kinds = "bigint[]", "json[]", "float8[]", "int8multirange"
    for value, kind in zip(values, kinds, strict=True):
        assert await connection.fetchval(f"select $1::{kind}", value) == value
    assert questions == []


async def test_types_of_the_database_are_asked_about(empty_dsn: str, questions: list[list[int]]) -> None:
    for labels in ("'sent', 'paid'", "'paid', 'lost'"):  # the second time with other oids
        async with (
            servers.opened(empty_dsn) as database, database.connections.connection() as first, database.connections.connection() as second
        ):  # fmt: skip
            await first.execute(f"create type state as enum ({labels})")
            await first.execute("create type bill as (number bigint, states state[])")
            for connection in (first, second):
                asked = len(questions)
                row = await connection.fetchrow("select row(7, array['paid']::state[])::bill, array[1::bigint]")
                assert tuple(row) == ((7, ["paid"]), [1])
                assert len(questions) > asked
            await first.execute("drop type bill; drop type state")


async def test_statements_without_names_work(empty_dsn: str, questions: list[list[int]]) -> None:
    """Behind a pooler statements have no names, and a question of asyncpg would replace the one that it prepares."""
    connection = await asyncpg.connect(empty_dsn, connection_class=Connection, statement_cache_size=0)
    try:
        assert await connection.fetchval("select array[7::bigint]") == [7]
        assert await connection.fetchval("select $1::bigint[]", [8]) == [8]
    finally:
        connection.terminate()
    assert questions == []
