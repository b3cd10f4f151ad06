"""A function reads what is committed when it opens a table, whatever its caller's statement began with.

A STABLE function reads with the snapshot of the statement that calls it, and opens its tables later. If a table was
rewritten in between, as by REPACK (CONCURRENTLY) of PostgreSQL 19, that snapshot sees an empty table. A VOLATILE function
takes a snapshot for each of its statements, after the tables are opened.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace import store
from tests.conftest import Connect, Declare
from tests.support.readers import publish
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio

FUNCTIONS = """
    select n.nspname || '.' || p.proname as name, p.prosrc as body, p.provolatile <> 'v' as keeps_snapshot,
           l.lanname = 'sql' and p.proretset and not p.proisstrict and not p.prosecdef and p.proconfig is null as inlined
    from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace join pg_language as l on l.oid = p.prolang
    where n.nspname in ('headrace', 'headrace_internal', 'headrace_granted')
    union all
    select c.oid::regclass::text, pg_get_viewdef(c.oid), false, false
    from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    where c.relkind = 'v' and n.nspname in ('headrace', 'headrace_internal', 'headrace_granted')"""
"""Functions, and views. Postgres inlines a function in SQL that returns a set, is not volatile, and has no settings and
rights of its own."""

TABLES = r"""
    select string_agg(c.relname, '|') from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p') and n.nspname = 'headrace_internal'"""


def code(body: str) -> str:
    """The statements of a function, without comments, declarations, and the texts and names of tables in quotes."""
    bare = re.sub(r"--[^\n]*|'headrace_internal\.\w+'", "", body)
    return bare[bare.find("begin") :] if re.search(r"^begin\b", bare, re.MULTILINE) else bare


def reading(functions: list[Any], tables: str) -> set[str]:
    """The names of the functions that read a table of Headrace, or call a function that does."""
    table = re.compile(rf"headrace_internal\.({tables})\b(?!\()")
    bodies = {row["name"]: code(row["body"]) for row in functions}
    calls = {name: set(re.findall(r"(headrace(?:_\w+)?\.\w+)\(", body)) for name, body in bodies.items()}
    found = {
        name
        for name, body in bodies.items()
        if table.search(body) or re.search(r"\bexecute\b", re.sub(r"'[^']*'", "", body))
    }
    while more := {name for name, called in calls.items() if called & found} - found:
        found |= more
    return found


def arguments_of(call: str) -> str:
    """The text up to the bracket that closes a call."""
    depth = 1
    for place, letter in enumerate(call):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return call[:place]
    raise AssertionError(call)


async def test_no_function_that_reads_a_table_keeps_the_snapshot_of_its_caller(database: store.Database) -> None:
    functions = await database.fetch(FUNCTIONS)
    readers = reading(functions, await database.fetchval(TABLES))
    assert {"headrace_internal.seq_at", "headrace_internal.cursor_holes", "headrace.consumers"} <= readers
    wrong = {row["name"] for row in functions if row["keeps_snapshot"] and not row["inlined"]} & readers
    assert wrong == set(), "make them volatile, or inline them"


async def test_each_function_that_should_be_inlined_is_called_where_that_is_possible(database: store.Database) -> None:
    """Postgres inlines a call in FROM, if no argument is a subquery or volatile."""
    functions = await database.fetch(FUNCTIONS)
    readers = reading(functions, await database.fetchval(TABLES))
    inlined = {row["name"] for row in functions if row["keeps_snapshot"] and row["inlined"]} & readers
    assert "headrace_internal.cursor_holes" in inlined
    volatile = {row["name"] for row in functions if not row["keeps_snapshot"]}
    wrong = []
    for row in functions:
        body = code(row["body"])
        for call in re.finditer(r"(\w+|[^\w\s])\s*(headrace(?:_\w+)?\.\w+)\(", body):
            before, name = call.groups()
            if name not in inlined:
                continue
            given = arguments_of(body[call.end() :])
            if (
                before.lower() not in {"from", "join", "lateral"}
                or re.search(r"\bselect\b", given, re.IGNORECASE)
                or set(re.findall(r"headrace(?:_\w+)?\.\w+(?=\()", given)) & volatile
            ):
                wrong.append((row["name"], call.group()))
    assert wrong == []


Change = Callable[[Any], Awaitable[Any]]

READS = {
    "message": "select key from headrace_internal.message_by_seq('orders', 1)",
    "search": "select seq from headrace_internal.search_step('orders', null, 1, 1000, null, 60)",
    "state": "select state from headrace_internal.key_states('orders', 1, 'k')",
    "stream": "select last_seq from headrace_internal.stream_info('orders')",
    "consumer": "select num_pending from headrace_internal.consumer_info('orders', 'ship')",
    "time": "select headrace_internal.position_at('orders', '-infinity')",
    "preview": "select again from headrace_internal.seek_preview(CONSUMER, 1, null)",
    "peek": "select seq from headrace_internal.peek_page(CONSUMER, 1)",
}
"""What a user sees of a message, by what it is called."""


async def behind_an_old_snapshot(connect: Connect, read: str, change: Change) -> Any:
    """Make a change after a statement has taken its snapshot, and before it calls a function. Returns what it read."""
    connection, other = await connect(), await connect()
    await other.execute("select pg_advisory_lock(7)")
    statement = f"select r.* from (select pg_advisory_lock_shared(7) offset 0) as waited cross join lateral ({read} offset 0) as r"
    reader = await start(connection.fetchval(statement))
    await until_blocked(other, by=other)
    await change(other)
    await other.execute("select pg_advisory_unlock(7)")
    return await reader


@pytest.mark.parametrize("read", READS)
async def test_a_function_reads_what_was_committed_after_its_callers_statement_began(
    declare: Declare, connect: Connect, read: str
) -> None:
    reader = await declare()
    statement = READS[read].replace("CONSUMER", str(reader.id))
    expected = []

    async def change(other: Any) -> None:
        await publish(other, "k", "k")
        expected.append(await other.fetchval(statement))

    assert await behind_an_old_snapshot(connect, statement, change) == expected[0]


@pytest.mark.parametrize("read", READS)
async def test_a_table_that_is_repacked_concurrently_is_not_read_as_empty(
    database: store.Database, declare: Declare, connect: Connect, read: str
) -> None:
    if await database.fetchval("show server_version_num") < "190000":
        pytest.skip("REPACK (CONCURRENTLY) came with PostgreSQL 19")
    reader = await declare()
    await publish(database, "k", "k")
    statement = READS[read].replace("CONSUMER", str(reader.id))
    expected = await database.fetchval(statement)
    tables = await database.fetch(
        "select c.oid::regclass::text as name from pg_class as c join pg_namespace as n on n.oid = c.relnamespace"
        " where c.relkind = 'r' and n.nspname in ('headrace_internal', 'headrace_streams')"
        " and c.relpersistence = 'p' and c.relreplident = 'd' and exists (select from pg_index where indrelid = c.oid and indisprimary)"
    )
    assert len(tables) > 30

    async def repack(other: Any) -> None:
        for table in tables:
            await other.execute(f"repack (concurrently) {table['name']}")

    assert await behind_an_old_snapshot(connect, statement, repack) == expected
