"""Settings of a role or a database that change what statements mean or how long they may take. Headrace
works under each of them, or says which one is wrong.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import headrace
from headrace import App, Message, Transaction, store, sweep
from headrace.model.errors import HeadraceError
from headrace.model.specs import StreamSpec
from tests.conftest import Connect, Declare
from tests.runtime.running import Seen, running
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio

FRAMEWORK = Path(headrace.__file__).parent
SPARK = Path(__file__).parents[2] / "spark"

SHADOWS = """
    create schema evil;
    create schema overloads;
    create function evil.shout() returns text language plpgsql as $$ begin raise exception 'a shadow was called'; end $$;
    -- In front of pg_catalog.
    create function evil.clock_timestamp() returns timestamptz language sql as $$ select evil.shout()::timestamptz $$;
    create function evil.cardinality(anyarray) returns int language sql as $$ select evil.shout()::int $$;
    create function evil.hashtextextended(text, bigint) returns bigint language sql as $$ select evil.shout()::bigint $$;
    create function evil.current_setting(text) returns text language sql as $$ select evil.shout() $$;
    create function evil.pg_current_xact_id() returns xid8 language sql as $$ select evil.shout()::xid8 $$;
    create function evil.wrong(bigint, bigint) returns boolean language sql as $$ select evil.shout()::boolean $$;
    create function evil.wrong(text, text) returns boolean language sql as $$ select evil.shout()::boolean $$;
    create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.wrong);
    create operator evil.= (leftarg = text, rightarg = text, function = evil.wrong);
    create operator evil.< (leftarg = bigint, rightarg = bigint, function = evil.wrong);
    create view evil.pg_locks as select evil.shout()::int as locktype;
    create view evil.pg_class as select evil.shout()::int as oid;
    -- Behind it, where they fit the arguments better.
    create function overloads.format(text, text) returns text language sql as $$ select evil.shout() $$;
    create function overloads.format(text, text, text) returns text language sql as $$ select evil.shout() $$;
    create function overloads.format(text, text, text, text) returns text language sql as $$ select evil.shout() $$;
    create function overloads.concat_ws(text, uuid, xid, text) returns text language sql as $$ select evil.shout() $$;
    create function overloads.json_build_object(text, text) returns json language sql as $$ select evil.shout()::json $$;
"""
"""Objects that a search path can put in the place of those of pg_catalog. Each of them raises an error."""

SETTINGS = {
    "overloads": "search_path = overloads",
    "isolation repeatable read": "default_transaction_isolation = 'repeatable read'",
    "isolation serializable": "default_transaction_isolation = 'serializable'",
    "deferrable": "default_transaction_deferrable = on",
    "statement timeout": "statement_timeout = '5s'",
    "lock timeout": "lock_timeout = '5s'",
    "idle in transaction": "idle_in_transaction_session_timeout = '5s'",
    "idle session": "idle_session_timeout = '300ms'",
    "empty search path": "search_path = ''",
    "unknown search path": "search_path = nowhere",
    "plpgsql": "plpgsql.extra_errors = 'all'",
    "nulls": "transform_null_equals = on",
    "quotes": "quote_all_identifiers = on",
    "texts": "bytea_output = 'escape'",
    "dates": "datestyle = 'German'",
    "intervals": "intervalstyle = 'sql_standard'",
    "floats": "extra_float_digits = -15",
    "strings": "standard_conforming_strings = off",
    "arrays": "array_nulls = off",
    "zone": "timezone = 'Pacific/Kiritimati'",
    "plans": "plan_cache_mode = 'force_custom_plan'",
}


@pytest.mark.parametrize("setting", SETTINGS)
async def test_everything_works_under_a_hostile_setting_of_the_database(empty_dsn: str, setting: str) -> None:
    admin = await asyncpg.connect(empty_dsn)
    try:
        skip_if_gone(admin, setting)
        name = await admin.fetchval("select current_database()")
        await admin.execute(SHADOWS)
        await admin.execute(f"alter database {name} set {SETTINGS[setting]}")
    finally:
        await admin.close()
    await live(empty_dsn)


def skip_if_gone(connection: asyncpg.Connection[Any], setting: str) -> None:
    if setting == "strings" and connection.get_server_version().major >= 19:
        pytest.skip("standard_conforming_strings can't be off from PostgreSQL 19 on")


async def test_no_function_uses_what_a_search_path_puts_before_pg_catalog(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader, connection = await declare(), await connect()
    await connection.execute(SHADOWS)
    await connection.execute("set search_path = evil, pg_catalog")
    await connection.execute("create temp table pg_locks (locktype int)")
    for _ in range(3):
        await publish(connection, "a")
    batch = await reader.lease()
    lease, seqs = batch.lease_id, batch.seqs
    assert seqs == [1, 2, 3]
    await connection.execute(f"select headrace.ack({reader.id}, array[{lease}::bigint], array[1::bigint])")
    await connection.execute("select headrace.mend_sequences()")
    await connection.execute("select headrace.create_stream('invoices')")
    for view in ("streams", "consumers"):
        assert await connection.fetch(f"select * from headrace.{view}")


INLINED = {"consumer_settings", "history_identity", "timeline_identity", "witness_retention", "begin_timeline"}
"""Functions that are expressions in other statements. A setting of their own would keep them from being inlined."""


async def test_every_function_that_is_called_from_outside_pins_its_search_path(database: store.Database) -> None:
    texts = [path.read_text() for root in (FRAMEWORK, SPARK) for path in root.rglob("*.py")]
    called = {name for text in texts for name in re.findall(r"headrace_internal\.(\w+)\(", text)}
    unpinned = await database.fetch("""
        select p.proname::text as name, p.pronamespace::regnamespace::text as schema from pg_proc as p
        where p.pronamespace in ('headrace'::regnamespace, 'headrace_internal'::regnamespace)
          and not exists (select from unnest(p.proconfig) as c where c ~ '^search_path=pg_catalog, "?pg_temp')""")
    outside = {row["name"] for row in unpinned if row["schema"] == "headrace" or row["name"] in called}
    assert outside - INLINED == set()


async def test_no_string_of_a_function_depends_on_how_backslashes_are_read(database: store.Database) -> None:
    """A function has E'' strings only, or turns `standard_conforming_strings` on."""
    functions = await database.fetch("""
        select oid::regprocedure::text as name, prosrc as body, coalesce(proconfig, '{}') as settings from pg_proc
        where pronamespace in ('headrace'::regnamespace, 'headrace_internal'::regnamespace) and strpos(prosrc, chr(92)) > 0""")
    assert len(functions) > 5
    for function in functions:
        if "standard_conforming_strings=on" not in function["settings"]:
            plain = re.sub(r"E'(?:[^']|'')*'(?:\s*\n\s*'(?:[^']|'')*')*|--.*", "", function["body"])
            assert "\\" not in plain, function["name"]


async def live(dsn: str) -> None:
    """Create the schema, and use all of it once."""
    app, shipped, billed, shown = App(dsn), Seen(), Seen(), Seen()
    app.stream("prices", one_message_per_key=True, dedupe=True)

    @app.consumer("orders", filter="eu.>", max_deliver=2, backoff=["1ms"])
    async def ship(message: Message) -> None:
        shipped.note(message.seq)
        if message.seq == 3:
            raise ValueError("no")

    @app.consumer("orders", where="data.n > 3", transactional=True, ordered=False)
    async def bill(order: dict[str, int], tx: Transaction) -> None:
        await tx.publish("prices", "eu.1", order)
        billed.note(order["n"])

    @app.consumer("prices", deliver_policy="last_per_key")
    async def show(price: dict[str, int]) -> None:
        shown.note(price)

    async with running(app):
        await app.publish_many("orders", [(f"eu.{n % 3}", {"n": n}) for n in range(10)])
        await app.publish("orders", "eu.7", {"n": 1}, message_id="once", headers={"a": "b"})
        await app.publish("orders", "eu.7", {"n": 1}, message_id="once")
        await app.publish("orders", "eu.8", {"n": 2}, delay="10ms")
        await shipped.until(13)  # two of them of the message that fails
        await app.idle()
        admin = app.admin
        assert (await admin.consumer("orders", "ship")).dead_letters == 1
        assert [letter.seq for letter in await admin.dead_letters("orders", "ship")] == [3]
        await admin.redrive("orders", "ship")
        await admin.snapshot()
        await admin.streams()
        await admin.consumers()
        await admin.peek("orders", "ship")
        await admin.blocked_keys("orders", "ship")
        await admin.messages("orders", limit=3)
        await admin.seek("orders", "ship", datetime.now(UTC) - timedelta(hours=1))
        await admin.replay("orders", "bill", filter="eu.1")
        await app.idle()
        async with app.transaction() as transaction:
            await transaction.publish("orders", "eu.9", {"n": 0})
        await admin.edit_stream("orders", retain_up_to="1h")
        await sweep(app.database, now=datetime.now(UTC) + timedelta(hours=2))
        for table in await store.tables_to_vacuum(app.database):
            await store.vacuum_table(app.database, table)
        token = await admin.create_token("t", ["admin"])
        assert token
        await admin.pause("orders", "ship")
        await app.publish("prices", "eu.2", {"n": 9}, expires_in="1m", unique_key="nine")
        for published in (1, 0):
            assert await app.publish_many("prices", [("eu.3", 3)], unique_keys=["three"], delay="1h") == published
        (priced,) = await admin.messages("prices", filter="eu.2")
        assert await admin.erase("prices", [priced.seq], reason="try") == [priced.seq]
        assert [one.seq for one in await admin.erasures("prices")] == [priced.seq]
        await admin.delete_stream("prices", force=True)
    assert set(billed.notes) == {4, 5, 6, 7, 8, 9}
    assert shown.notes


# --- sessions of users


PUBLISHES = """
    select headrace.publish('orders', 'a', '{}');
    select headrace.publish('orders', 'a', '{}', null, 'once');
    select headrace.publish('orders', 'a', '{}', p_message_id => 'once', p_deliver_at => null);
    select headrace.publish('orders', 'b', '{}', p_deliver_at => pg_catalog.clock_timestamp() + interval '1 hour');
    select headrace.publish('prices', 'a', '1'), headrace.publish('prices', 'a', '1'), headrace.publish('prices', 'a', '2');
    select headrace.publish_many('orders', array['c', 'd'], array['1', '2']::json[], array['{"headrace-expires-in": 3000000000}', null]::json[]);
    select headrace.publish_unique('prices', 'a', '1', 'x'), headrace.publish_unique('prices', 'b', '1', 'x');
    select headrace.publish_unique_many('prices', array['c', 'd'], array['1', '2']::json[], array['y', null]);
    select headrace.create_stream('invoices', '{"retain_up_to": 60}');
"""

SESSIONS = {
    "shadows": "set search_path = evil, overloads, pg_catalog; create temp table pg_locks (locktype int); create temp table pg_class (oid oid)",
    "no path": "set search_path = ''",
    "serializable": "set default_transaction_isolation = 'serializable'",
    "repeatable read": "set default_transaction_isolation = 'repeatable read'",
    "deferrable": "set default_transaction_isolation = 'serializable'; set default_transaction_deferrable = on",
    "strings": "set standard_conforming_strings = off; set backslash_quote = off",
    "plpgsql": "set plpgsql.extra_errors = 'all'; set plpgsql.variable_conflict = 'use_column'",
    "nulls": "set transform_null_equals = on",
    "rows": "set row_security = off",
    "plans": "set plan_cache_mode = 'force_generic_plan'; set jit_above_cost = 0",
    "timeouts": "set statement_timeout = '5s'; set lock_timeout = '5s'; set idle_in_transaction_session_timeout = '5s'",
}


@pytest.mark.parametrize("setting", SESSIONS)
async def test_users_publish_and_ack_under_hostile_settings_of_their_session(
    database: store.Database, declare: Declare, connect: Connect, setting: str
) -> None:
    reader, user = await declare(), await connect()
    skip_if_gone(user, setting)
    await store.create_stream(database, StreamSpec(name="prices", one_message_per_key=True, dedupe=True))
    await user.execute(SHADOWS)
    await user.execute(SESSIONS[setting])
    async with user.transaction():  # with the settings of the session
        await user.execute(PUBLISHES)
    batch = await reader.lease(limit=2)
    assert batch.seqs == [1, 2]
    async with user.transaction():
        await user.execute(f"select headrace.ack({reader.id}, array[{batch.lease_id}::bigint], array[1::bigint])")
    async with user.transaction():
        await user.execute("select headrace.publish('orders', 'e', '{}')")
        assert await reader.drain("bob") == [3, 4]  # what is committed, and nothing else
    for view in ("streams", "consumers", "in_flight", "parked", "dead_letters", "sources", "workers"):
        await user.fetch(f"select * from headrace.{view}")
    await user.fetch("select * from headrace.sequences_behind()")
    await user.fetch("select headrace.mend_sequence('orders')")
    assert await reader.drain("bob") == [5]
    await reader.ack(batch, 2)
    assert (await reader.info()).lag == 0


async def test_messages_of_serializable_publishers_are_all_delivered(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Each takes its snapshot before the others commit, and they commit in the opposite order."""
    reader = await declare()
    publishers = [await connect() for _ in range(4)]
    transactions = [user.transaction(isolation="serializable") for user in publishers]
    for transaction in transactions:
        await transaction.start()
    for number, user in enumerate(publishers):
        await user.execute("select count(*) from headrace_streams.orders")
        await user.execute(f"select headrace.publish('orders', 'k{number}', '{{}}')")
    delivered = []
    for transaction in reversed(transactions):
        try:
            await transaction.commit()
        except asyncpg.SerializationError:  # they read what the others wrote, so not all can commit
            continue
        delivered += await reader.drain()
    assert delivered
    assert sorted(delivered) == [
        r["seq"] for r in await database.fetch("select seq from headrace_streams.orders order by 1")
    ]


async def test_serializable_transactions_that_only_publish_never_fail_for_each_other(
    declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    publishers = [await connect() for _ in range(4)]
    transactions = [user.transaction(isolation="serializable") for user in publishers]
    for transaction in transactions:
        await transaction.start()
    for number, user in enumerate(publishers):
        await user.execute(f"select headrace.publish('orders', 'k', '{{}}', p_message_id => 'id{number}')")
    for transaction in reversed(transactions):
        await transaction.commit()
    assert sorted(await reader.drain()) == [1, 2, 3, 4]


async def test_functions_that_need_read_committed_say_so(database: store.Database, connect: Connect) -> None:
    user = await connect()
    async with user.transaction(isolation="serializable"):
        with pytest.raises(asyncpg.PostgresError, match=r"mend_sequences.*read committed"):
            await user.execute("select headrace.mend_sequences()")


async def test_a_role_that_the_database_sets_and_that_lacks_privileges_is_said(dsn: str, connect: Connect) -> None:
    """The session connects as a user that may do everything, and then is another role."""
    admin = await connect()
    name = await admin.fetchval("select current_database()")
    role = f"weak_{name}"
    await admin.execute(f"create role {role}; alter database {name} set role = '{role}'")
    try:
        with pytest.raises(HeadraceError, match=r"permission denied for schema headrace_internal.*current_user"):
            async with App(dsn):
                pass
        await admin.execute(
            f"grant usage on schema headrace, headrace_internal, headrace_streams to {role};"
            f"grant select on all tables in schema headrace_internal to {role}"
        )
        async with App(dsn, migrate=False) as app:
            with pytest.raises(HeadraceError, match=r"permission denied.*current_user"):
                await app.admin.create_stream("orders")
    finally:
        await admin.execute(f"alter database {name} reset role; drop owned by {role}; drop role {role}")
