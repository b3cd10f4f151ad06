"""A source's condition reads as Postgres reads it, and one that can't be read so stops its source."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from headrace.admin import Admin
from headrace.model import conditions
from headrace.model.errors import ConfigurationError
from headrace.sources.postgres.rules.conditions import SourceCondition
from tests.sources.postgres.captured import Shop
from tests.sources.postgres.tables_for_tests import Shaped, order

REFUSED = "data.record.status regex '(?=a)'"


@pytest.mark.parametrize(("pattern", "status", "is_met"), [
    ("[[:lower:]]+", b"new", True), ("[[:lower:]]+", b"NEW", False), ("^new$", b"new\n", False), (r"\mnew\M", b"a new one", True),
    (r"\mnew\M", b"renewed", False), ("(?i)NEW", b"new", True), ("^n{,3}$", b"nn", False),
])  # fmt: skip
def test_a_regex_of_a_source_is_read_as_postgres_reads_it(pattern: str, status: bytes, is_met: bool) -> None:
    shaped = Shaped(where=f"data.record.status regex '{pattern}'")
    shaped.read(order(status=status))
    assert (len(shaped.messages) == 1) is is_met
    assert not shaped.shaped_changes.failures


async def _with_stored_pattern(shop: Shop) -> None:
    """A source as a version stored it that accepted any pattern of Python's."""
    await shop.source(where="data.record.status = 'new'")
    await shop.sql.execute(
        "update headrace_internal.sources set settings = jsonb_set(settings::jsonb, '{where}', to_jsonb($1::text))",
        REFUSED,
    )


@pytest.mark.asyncio
async def test_a_stored_source_with_a_refused_regex_stops_until_it_is_edited(shop: Shop) -> None:
    await _with_stored_pattern(shop)
    async with shop.captured():
        stopped = await shop.until_state("stopped")
        assert stopped.capture is not None
        assert "where of the source 'shop' has the regular expression '(?=a)'" in (stopped.capture.reason or "")
        await Admin(shop.database).edit_source("shop", where="data.record.status regex '^a'")
        await shop.until_running()
        await shop.sql.execute("insert into orders values (1, 'ab'), (2, 'ba')")
        [message] = await shop.until(1)
        assert message["record"]["id"] == 1


@pytest.mark.asyncio
async def test_a_stored_source_with_a_refused_regex_is_checked_paused_and_deleted(shop: Shop) -> None:
    await _with_stored_pattern(shop)
    admin = Admin(shop.database)
    [where] = [finding for finding in await admin.check_source("shop") if finding.what == "where"]
    assert (where.level, where.hint) == ("error", "headrace source postgres edit shop --where none")
    await admin.pause_source("shop")
    await admin.resume_source("shop")
    with pytest.raises(ConfigurationError, match="lookaround"):
        await admin.edit_source("shop", rate=5)  # an edit checks the whole
    await admin.delete_source("shop")
    assert await admin.sources() == []


# Values as a column's JSON has them, and what they are compared with.
_VALUES = [
    '"a"', '"A"', '"ä"', '"b"', '"ab"', '"10"', '"9"', '"Z"', '"é"', '"\U0001f600"', '"\uffff"', '""', "1", "1.0", "10", "9", "-0", "0",
    "0.1", "1e400", "12345678901234567890.5", "true", "false", "null", "[]", "{}", '[{"a": 1}]', '"2030-01-01T00:00:00Z"', "1.50", '"1.50"',
]  # fmt: skip
_LITERALS = [
    "'a'",
    "'A'",
    "'ä'",
    "'10'",
    "1",
    "10",
    "0",
    "0.1",
    "12345678901234567890.5",
    "true",
    "'\U0001f600'",
    "'\uffff'",
    "1.5",
    "'1.50'",
    "''",
]
_TESTS = [
    *(f"data.record.v {op} {literal}" for op in ("=", "!=", "<", "<=", ">", ">=") for literal in _LITERALS
      if literal != "true" or op in ("=", "!=")),
    *(f"data.record.v {op} ('a', 1, true, '10', 12345678901234567890.5)" for op in ("in", "not in")),
    *(f"data.record.v {op} '{pattern}'" for op in ("like", "ilike") for pattern in ("a%", "_", "%É%", "Ä", "1_50", "")),
    *(f"data.record.v regex '{pattern}'" for pattern in ("^.$", r"\w", r"^\d+$", "[[:alpha:]]", "(?i)A", "[a-z]|é")),
    "data.record.v is null", "data.record.v is not null", "not data.record.v = 1", "data.record.none != 1", "data.record.none is null",
    "data.record.v.0.a = 1", "data.record.v.a is null", "data.record.v <= 'b' and not data.record.v in ('a', 'b')",
]  # fmt: skip


@pytest.mark.asyncio
async def test_each_operator_decides_as_consumers_of_the_stream_do(shop: Shop) -> None:
    """The source's own evaluation in Python, and the SQL that selects a consumer's messages."""
    documents = [f'{{"record":{{"v":{value}}},"action":"insert"}}' for value in _VALUES]
    for text in _TESTS:
        condition = conditions.parse(text)
        sql = await shop.sql.fetchval("select headrace_internal.where_condition($1)", conditions.encode(condition))
        rows = await shop.sql.fetch(
            f"""select {sql} as met from (select ord, data, null::json as headers, 'k'::text as key, ord as seq, now() as created_at
                  from unnest($1::json[]) with ordinality as u(data, ord)) as m order by ord""", documents
        )  # fmt: skip
        decided = [SourceCondition(condition).evaluate("k", document.encode()) for document in documents]
        assert decided == [row["met"] for row in rows], text


# A column's type, its literals in SQL, and conditions that a source and a backfill share.
_COLUMNS: list[tuple[str, list[str], list[str]]] = [
    ("int", ["1", "-5", "null"], ["v = 1", "v > 0", "v in (1, 2)", "v is null", "v != 1", "not v = 1", "v not in (1)"]),
    ("text", ["'a'", "'b'", "'ab'", "null", "''"], ["v = 'a'", "v like 'a%'", "v regex '^a.'", "v != 'a'", "v in ('a', '')", "v ilike 'A'"]),
    ("boolean", ["true", "false", "null"], ["v = true", "v != true", "v is not null", "v in (false)"]),
    ("jsonb", ["'{\"a\": 1}'", "'{\"a\": \"É\"}'", "'null'", "'{\"a\": 1.0}'", "null"], [
        "v.a = 1", "v.a is null", "v is null", "v.a != 1", "v.a ilike 'é'", "v.a regex '[[:alpha:]]'", "v.a > 0"]),
]  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize(("kind", "literals", "tests"), _COLUMNS, ids=[kind for kind, *_ in _COLUMNS])
async def test_a_backfill_selects_the_rows_that_the_source_would(
    shop: Shop, kind: str, literals: list[str], tests: list[str]
) -> None:
    from headrace.sources.postgres.backfill.row_conditions import compile_condition
    from headrace.sources.postgres.connection.source_connection import SourceConnection
    from headrace.sources.postgres.database.catalog import load_tables

    values = ", ".join(f"({place}, {literal}::{kind})" for place, literal in enumerate(literals))
    await shop.sql.execute(f"create table typed (id int primary key, v {kind}); insert into typed values {values}")
    async with await SourceConnection.connect(shop.dsn, application_name="test") as connection:
        table = (await load_tables(connection, ["public.typed"]))["public.typed"]
    rows: list[asyncpg.Record] = await shop.sql.fetch("select id, to_json(v)::text as v from typed order by id")
    for text in tests:
        where = text.replace("v", "data.record.v", 1) if not text.startswith("not ") else "not data.record." + text[4:]
        sql, params = compile_condition(where, table)
        selected = await shop.sql.fetch(f"select id from typed where {sql} order by id", *map(_argument(kind), params))
        condition = SourceCondition(conditions.parse(where))
        met = [
            row["id"] for row in rows if condition.evaluate("k", f'{{"record":{{"v":{row["v"] or "null"}}}}}'.encode())
        ]
        assert met == [row["id"] for row in selected], where


def _argument(kind: str) -> Any:
    """A parameter of text as this driver wants it for a column of the type."""
    return {"int": int, "boolean": json.loads}.get(kind, str)
