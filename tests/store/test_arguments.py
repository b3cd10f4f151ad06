"""A function of the schema has at most eight arguments. More of them are parts of something that has a name: a row, a
composite type, or a JSON value.
"""

from __future__ import annotations

import pytest

from headrace import store

pytestmark = pytest.mark.asyncio

MOST = 8

ARGUMENTS = """
    select p.oid::regprocedure::text as function, p.pronargs as arguments from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
    where n.nspname like 'headrace%'"""
"""How many arguments a caller may give. Results, as the columns of a table, don't count, and those with a default do."""


async def test_no_function_has_more_than_eight_arguments(database: store.Database) -> None:
    await store.create_stream(database, "orders")  # whose functions publish to it
    functions = {row["function"]: row["arguments"] for row in await database.fetch(ARGUMENTS)}
    schemas = {name.split(".")[0] for name in functions}
    assert {"headrace", "headrace_internal", "headrace_granted", "headrace_streams"} <= schemas
    assert {name: count for name, count in functions.items() if count > MOST} == {}
