"""Statements that change a session are recognized, and others are not. A session that they have changed is restored."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from headrace import store
from headrace.store.connections.sessions import changes_session
from tests.support.roles import as_role
from tests.support.servers import opened

CHANGES = [
    "set statement_timeout = '1s'",
    "SET SESSION search_path TO app",
    "set role tenant",
    "set session authorization tenant",
    "set session characteristics as transaction isolation level serializable",
    "  -- a comment\n set role tenant",
    "/* a comment */set role tenant",
    "/* a comment; of two parts */ -- and another one\n/**/ set role tenant",
    "select '/*'; set role tenant",
    "insert into effects values (1); set role tenant",
    "reset all",
    "discard all",
    "listen orders",
    "load 'auto_explain'",
    "prepare find as select 1",
    "do $$ begin perform set_config('app.tenant', '1', false); end $$",
    "call log_in(1)",
    "select set_config('app.tenant', $1, false)",
    "select set_config('app.tenant', $1, $2)",
    "select set_config('app.a', $1, true); select set_config('app.b', $1, false)",
    "select pg_advisory_lock(1)",
    "select pg_try_advisory_lock_shared(1)",
    "create temp table found (id int)",
    "create temporary table found as select 1",
    "create or replace temp view found as select 1",
    "select 1 into temp found",
    "declare all_orders cursor with hold for select 1",
]
CHANGES_NOTHING = [
    "update orders set total = 1",
    "UPDATE orders\nSET total = 1",
    "insert into orders values (1) on conflict (id) do update set total = 1",
    "insert into orders values (1) on conflict do nothing",
    "set local role tenant",
    "begin; set local statement_timeout = 1000",
    "set constraints all deferred",
    "set transaction isolation level serializable",
    "select set_config('app.tenant', $1, true)",
    "select set_config('app.tenant', $1, is_local => true), 1",
    "select pg_advisory_xact_lock(1)",
    "select pg_try_advisory_xact_lock(1)",
    "create temp table found (id int) on commit drop",
    "select temperature from called where listened",
    "select do_something(), reset_at from resets",
    "select headrace_internal.lease($1, $2)",
]


@pytest.mark.parametrize("statement", CHANGES)
def test_what_changes_the_session_is_recognized(statement: str) -> None:
    assert changes_session(statement)
    assert changes_session("select 1;\n" + statement if not statement.startswith("insert") else statement)
    assert changes_session(f"{statement} /* {'x' * 20_000} */")


@pytest.mark.parametrize("statement", CHANGES_NOTHING)
def test_what_ends_with_the_transaction_is_not(statement: str) -> None:
    assert not changes_session(statement)
    assert not changes_session(f"{statement} /* {'x' * 20_000} */")


@pytest.mark.parametrize(
    "piece",
    ["/* x */ ", ";/* ", "; ", " ", "--", "--a\n", "temp table ", "set_config(", "/*", "*/", "into ", "x, true"],
)
def test_no_text_takes_long_to_look_at(piece: str) -> None:
    """A pattern that backtracks would take minutes, or forever."""
    for text in (piece * 100_000, "select set_config(" + piece * 100_000, ";" + piece * 100_000 + "x"):
        changes_session(text)


FOUND = "select pg_backend_pid(), session_user::text, current_user::text, current_setting('search_path'), current_setting('work_mem')"


@pytest.mark.asyncio
async def test_a_session_is_restored_to_what_it_began_with(database: store.Database, dsn: str) -> None:
    """Also if it began with another role and with its own settings."""
    role = f"headrace_test_{secrets.token_hex(6)}"
    await database.fetch(f"create role {role} login password 'secret'")
    try:
        owner = await database.fetchval("select current_user")
        await database.fetch(f"grant {owner} to {role}")
        await database.fetch(f"alter role {role} set role = {owner}")
        await database.fetch(f"alter role {role} set work_mem = '5MB'")
        async with opened(as_role(dsn, role)) as other:
            began = await _found(other)
            assert began[1:] == (role, owner, began[3], "5MB")
            for changes in (
                f"set role {role}",
                "set session authorization default",
                "set search_path = public, pg_temp",
                "set work_mem = '6MB'",
            ):
                async with other.transaction() as connection:
                    await connection.execute(changes)
                assert await _found(other) == began
    finally:
        await database.fetch(f"drop role {role}")


async def _found(database: store.Database) -> tuple[Any, ...]:
    return tuple(await database.fetchrow(FOUND))
