"""Install the gate in a database, and rewrite Headrace's functions there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from tests.schedules import rewrite

_FUNCTIONS = """
    select p.oid, n.nspname || '.' || p.proname as name, p.prosrc, l.lanname
    from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace join pg_language as l on l.oid = p.prolang
    where n.nspname in ('headrace', 'headrace_internal', 'headrace_granted', 'headrace_streams') order by 2"""
_TABLES = """
    select relname from pg_class where relnamespace = 'headrace_internal'::regnamespace and relkind in ('r', 'v', 'p')"""


def install(connection: psycopg.Connection[Any]) -> None:
    """Create the schema of the gate."""
    connection.execute((Path(__file__).parent / "gate.sql").read_text().encode())


def rewrite_functions(connection: psycopg.Connection[Any], wanted: Callable[[str], bool] | None = None) -> int:
    """Give every PL/pgSQL function of Headrace its gates. Returns the number of gates.

    Args:
        connection: one of a superuser.
        wanted: before which statements a gate stands. By default those that other sessions can tell.
    """
    functions = connection.execute(_FUNCTIONS).fetchall()
    if wanted is None:
        wanted = rewrite.Shared(
            {name for (name,) in connection.execute(_TABLES)},
            {name.partition(".")[2]: body for _, name, body, language in functions if language == "sql"},
        )
    gates = 0
    with connection.transaction():
        connection.execute("set local check_function_bodies = on")
        for oid, _, body, language in functions:
            if language == "plpgsql" and (gated := rewrite.with_gates(body, wanted)) != body:
                gates += gated.count(rewrite.GATE)
                connection.execute("update pg_proc set prosrc = %s where oid = %s", (gated, oid))
                connection.execute("select plpgsql_validator(%s)", (oid,))
    return gates
