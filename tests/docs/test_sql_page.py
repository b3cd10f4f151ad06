"""docs/sql.md lists what the public database schema has, and its statements run."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from headrace import store
from tests.conftest import Connect, Declare
from tests.support.readers import publish

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `headrace\.(\w+)(?:\((.*?)\))?` \|(.*)$", PAGE, re.MULTILINE)
FUNCTIONS = {name: arguments for name, arguments, row in ROWS if f"headrace.{name}(" in PAGE}
VIEWS = {name: set(re.findall(r"`(\w+)`", row)) for name, _, row in ROWS if name not in FUNCTIONS}
STATEMENTS = "\n".join(re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.asyncio
async def test_the_page_lists_all_functions_with_their_arguments(database: store.Database) -> None:
    functions = await database.fetch("""
        select p.proname::text as name, array_to_string(p.proargnames, ' ') as arguments,
               p.pronargs - p.pronargdefaults as required, obj_description(p.oid) as description
        from pg_proc as p where pronamespace = 'headrace'::regnamespace""")
    assert {f["name"] for f in functions} == set(FUNCTIONS)
    for function in functions:
        assert function["description"], f"headrace.{function['name']} has no comment"
        listed = [f"p_{argument.strip()}" for argument in FUNCTIONS[function["name"]].split(",") if argument.strip()]
        actual = function["arguments"].split() if function["arguments"] else []
        renamed = {"p_consumer_id": "p_consumer", "p_lease_ids": "p_leases"}  # said more fully on the page
        assert [renamed.get(argument, argument) for argument in listed] == actual[: len(listed)]
        assert len(listed) >= function["required"]


@pytest.mark.asyncio
async def test_the_page_lists_all_views_with_their_columns(database: store.Database) -> None:
    views = await database.fetch("""
        select c.relname::text as name, c.relkind, obj_description(c.oid) as description,
               array(select attname::text from pg_attribute where attrelid = c.oid and attnum > 0) as columns
        from pg_class as c where relnamespace = 'headrace'::regnamespace""")
    assert {v["relkind"] for v in views} == {b"v"}, "the public schema has views only"
    assert {v["name"]: set(v["columns"]) for v in views} == VIEWS
    assert all(v["description"] for v in views)


@pytest.mark.asyncio
async def test_the_statements_of_the_page_run(database: store.Database, connect: Connect) -> None:
    connection = await connect()
    for statement in STATEMENTS.split(";\n"):
        if statement.strip():
            rows = await connection.fetch(statement)
            assert rows, statement


@pytest.mark.asyncio
async def test_the_views_show_where_each_message_is(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1)
    await publish(database, "orders.a", "orders.a", "orders.b", "orders.c")
    leased = (await reader.lease(limit=10)).seqs
    held = await database.fetch("select * from headrace.in_flight order by seq")
    assert [(h["stream"], h["consumer"], h["seq"], h["attempt"]) for h in held] == [
        ("orders", "ship", seq, 1) for seq in leased
    ]
    consumer = await database.fetchrow("select * from headrace.consumers where stream = 'orders' and name = 'ship'")
    assert consumer is not None
    assert (consumer["num_ack_pending"], consumer["lag"], consumer["filters"]) == (len(leased), 0, [">"])
    await database.fetch(
        "select headrace.ack(consumer_id, array[lease_id], array[seq]) from headrace.in_flight where seq = $1",
        leased[0],
    )
    assert leased[0] not in [row["seq"] for row in await database.fetch("select seq from headrace.in_flight")]
    stream = await database.fetchrow("select * from headrace.streams where name = 'orders'")
    assert stream is not None
    assert (stream["messages"], stream["last_seq"], stream["is_full"]) == (4, 4, False)


@pytest.mark.asyncio
async def test_views_show_dead_letters_and_what_waits_behind_them(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, "orders.a", "orders.a", "orders.b")
    await reader.nack(await reader.lease(limit=10), 1)
    letters = await database.fetch("select stream, consumer, seq, key, blocks from headrace.dead_letters")
    assert [tuple(letter.values()) for letter in letters] == [("orders", "ship", 1, "orders.a", True)]
    parked = await database.fetch("select seq, due_at from headrace.parked")
    assert all(row["seq"] == 2 for row in parked)


@pytest.mark.asyncio
async def test_times_without_end_are_infinite_which_psycopg_reads_as_text_only(
    database: store.Database, declare: Declare, dsn: str
) -> None:
    reader = await declare()
    await publish(database, "orders.a")
    await reader.nack(await reader.lease(limit=1), 1)
    await store.pause(database, reader.id)
    infinite = {
        "select paused_until{} from headrace.consumers": "infinity",
        "select due_at{} from headrace.parked": "-infinity",
    }
    with psycopg.connect(dsn) as connection:
        for query, text in infinite.items():
            assert connection.execute(query.format("::text")).fetchall() == [(text,)]
            with pytest.raises(psycopg.DataError):
                connection.execute(query.format("")).fetchall()


@pytest.mark.asyncio
async def test_each_view_can_be_read_in_an_empty_database(database: store.Database) -> None:
    for view in sorted(VIEWS):
        assert await database.fetch(f"select * from headrace.{view}") == []
