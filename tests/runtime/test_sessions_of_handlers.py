"""Changes that a handler makes in the session of its connection affect neither the next handler nor the framework."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace import App, Transaction, store
from headrace.store.connections import connection as connections
from tests.runtime.running import Seen, consumer, running

pytestmark = pytest.mark.asyncio

MESSAGES = 30


async def sets(tx: Transaction) -> None:
    await tx.execute("set statement_timeout = '7s'; set search_path = pg_temp; set timezone = 'Asia/Tokyo'")


async def sets_by_a_function(tx: Transaction) -> None:
    await tx.fetchval("select set_config('app.tenant', '42', false)")


async def makes_a_temporary_table(tx: Transaction) -> None:
    await tx.execute("create temp table found (id int)")


async def takes_an_advisory_lock(tx: Transaction) -> None:
    await tx.fetchval("select pg_advisory_lock(4711)")


async def listens(tx: Transaction) -> None:
    await tx.connection.add_listener("anything", lambda *_: None)


async def sets_codecs(tx: Transaction) -> None:
    for name in ("json", "jsonb"):
        await tx.connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    await tx.connection.set_type_codec("text", encoder=str.upper, decoder=str.lower, schema="pg_catalog")


STATE = """select current_setting('statement_timeout'), current_setting('search_path'), current_setting('timezone'), current_user,
                  coalesce(current_setting('app.tenant', true), ''), to_regclass('pg_temp.found')::text,
                  (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() and objid = 4711),
                  (select array_agg(channel) from pg_listening_channels() as channel), '{"a": 1}'::json, 'a B'::text"""


async def takes_a_role(tx: Transaction) -> None:
    await tx.execute("set role pg_monitor")
    await tx.execute("reset role; set session authorization default")
    await tx.fetchval("select set_config('role', 'pg_monitor', false)")
    await tx.fetchval("select set_config('role', 'none', true)")  # until the COMMIT, since the ack needs the rights


@pytest.mark.parametrize(
    "leave",
    [
        sets,
        sets_by_a_function,
        makes_a_temporary_table,
        takes_an_advisory_lock,
        listens,
        sets_codecs,
        takes_a_role,
    ],
)
@pytest.mark.parametrize("outcome", ["ack", "error"])
async def test_what_a_handler_leaves_in_its_session_nobody_else_finds(
    dsn: str, leave: Callable[[Transaction], Awaitable[None]], outcome: str
) -> None:
    app, seen = App(dsn, streams=["orders"], max_connections=2), Seen()

    @app.consumer("orders", transactional=True, concurrency=1, backoff=0, max_deliver=2)
    async def ship(order: dict[str, int], tx: Transaction) -> None:
        seen.note(tuple(await tx.fetchrow(STATE)))
        await leave(tx)
        if outcome == "error" and order["n"] % 2:
            raise ValueError("failed")

    async with app:
        found: list[Any] = [tuple(await app.database.fetchrow(STATE)) for _ in range(4)]
        async with running(app):
            for n in range(MESSAGES):
                await app.publish("orders", f"k.{n}", {"n": n})
                found.append(tuple(await app.database.fetchrow(STATE)))
            await app.publish_many("orders", [("k", {"n": 2 * n}) for n in range(MESSAGES)])
            await app.idle()
        info = await consumer(app, "ship")
        assert (info.lag, info.in_flight, info.parked) == (0, 0, 0)
        assert info.dead_letters == (MESSAGES // 2 if outcome == "error" else 0)
        assert len(await app.database.fetch("select from headrace_streams.orders")) == 2 * MESSAGES
    assert len(seen.notes) >= 2 * MESSAGES
    assert set(map(str, seen.notes)) == set(map(str, found)) == {str(found[0])}


async def test_a_handler_that_deallocates_all_statements_harms_only_itself(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt may fail, if the driver has lost the statement of its ack. Its connection ends: no other call meets it."""
    app, seen = App(dsn, streams=["orders"], max_connections=2), Seen()

    @app.consumer("orders", transactional=True, concurrency=1, backoff=0, max_deliver=2)
    async def ship(number: int, tx: Transaction) -> None:
        seen.note(number)
        if number == 3:
            await tx.execute("deallocate all")

    async with app, running(app):
        await app.publish_many("orders", [("k", number) for number in range(MESSAGES)])
        await app.idle()
        info = await consumer(app, "ship")
    assert sorted(set(seen.notes)) == list(range(MESSAGES))
    assert (info.lag, info.in_flight, info.parked) == (0, 0, 0)
    failed = [record.getMessage() for record in caplog.records if "does not exist" in record.getMessage()]
    assert all(" stream=orders consumer=ship key=k seq=4 " in text for text in failed)


async def test_a_session_that_can_not_be_restored_ends(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next user gets another one."""
    async with database.transaction() as connection:
        before = await connection.fetchval("select pg_backend_pid()")
        await connection.execute("create temp table found (id int)")
        await connection.execute("listen anything")
    assert await database.fetchval("select pg_backend_pid()") == before
    async with database.transaction() as connection:
        await connection.execute("select set_config('app.tenant', '42', false)")
        monkeypatch.setattr(connections, "RESTORE", "select 1 / 0")
    assert await database.fetchval("select coalesce(current_setting('app.tenant', true), '')") == ""
    assert await database.fetchval("select pg_backend_pid()") != before


async def test_statements_that_change_nothing_take_no_further_round_trip(database: store.Database) -> None:
    before = database.statistics()["round_trips"]
    async with database.transaction() as connection:
        await connection.execute("set local statement_timeout = '7s'")
        await connection.fetchval("select set_config('app.tenant', '42', true)")
    assert database.statistics()["round_trips"] == before + 4
    assert await database.fetchval("show statement_timeout") != "7s"
