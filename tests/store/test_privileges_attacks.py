"""Attacks of roles with few grants or none. Each test connects as such a role, without the store."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from headrace import store
from headrace.model.errors import HeadraceError
from headrace.model.specs import ConsumerSpec
from tests.support.readers import Reader, publish
from tests.support.roles import Login, as_role, user

pytestmark = pytest.mark.asyncio

DENIED = (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError, asyncpg.UndefinedTableError)

Plain = Callable[[store.Database], Awaitable[Any]]


@pytest_asyncio.fixture
async def plain() -> AsyncIterator[Plain]:
    """Connect as the role of a database, without the store, whose statements would be rewritten."""
    opened: list[Any] = []

    async def plain(database: store.Database) -> Any:
        opened.append(await asyncpg.connect(database.dsn))
        return opened[-1]

    yield plain
    for connection in opened:
        connection.terminate()


async def denied(connection: Any, *statements: str) -> None:
    """Expect that a session may do none of these."""
    for sql in statements:
        with pytest.raises(DENIED):
            await connection.execute(sql)


PUBLISH_SECRETS = "select headrace.publish('secrets', 'a', '1')"
READ_SECRETS = "select * from headrace.dead_letters where stream = 'secrets'"


async def dead_secret(database: store.Database) -> None:
    """Leave a dead letter on the stream secrets."""
    number = await store.consumer_id(database, "secrets", "spy")
    batch = await store.lease(database, number, uuid4(), 1)
    assert batch.lease_id is not None
    await database.fetch(
        "select headrace_internal.settle_outcomes($1, '{}', $2, $3, array[$4::json])",
        number, [batch.lease_id], batch.seqs, '{"kind": "reject", "error": "no"}',
    )  # fmt: skip
    assert len(await database.fetch(READ_SECRETS)) == 1


# --- rights


async def test_every_table_sequence_and_function_behind_is_closed(
    database: store.Database, login: Login, plain: Plain
) -> None:
    """All that the catalogs list, and not only what a test thought of."""
    app = await login("publish", "consume", "observe", streams=())
    relations = await database.fetch(
        """select c.oid::regclass::text as name from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
           where n.nspname in ('headrace_internal', 'headrace_streams', 'headrace_staging') and c.relkind in ('r', 'p', 'S', 'v')"""
    )
    assert len(relations) > 30
    for row in relations:
        open_for = await database.fetchval(
            "select array_agg(p) from unnest($3::text[]) as p where has_table_privilege($1::text, $2::text, p)",
            user(app), row["name"], ["select", "insert", "update", "delete", "truncate", "references", "trigger"],
        )  # fmt: skip
        assert open_for is None, f"{row['name']}: {open_for}"
    for name in ("headrace_internal", "headrace_streams", "headrace_staging"):
        assert not await database.fetchval("select has_schema_privilege($1::text, $2::text, 'usage')", user(app), name)
    for name in ("headrace", "headrace_granted"):
        assert not await database.fetchval("select has_schema_privilege($1::text, $2::text, 'create')", user(app), name)
    writable = await database.fetch(
        """select c.oid::regclass::text from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
           where n.nspname in ('headrace', 'headrace_granted')
             and (has_table_privilege($1::text, c.oid, 'insert') or has_table_privilege($1::text, c.oid, 'update') or has_table_privilege($1::text, c.oid, 'delete'))""",
        user(app),
    )
    assert writable == []


async def test_a_role_without_a_grant_calls_nothing(database: store.Database, login: Login, plain: Plain) -> None:
    """Not even with the schemas opened by hand."""
    app = await login()
    await database.fetch(f"grant usage on schema headrace_granted to {user(app)}")
    connection = await plain(app)
    functions = await database.fetch(
        """select p.oid::regprocedure::text as name from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
           where n.nspname = 'headrace_granted' and has_function_privilege($1::text, p.oid, 'execute')""",
        user(app),
    )
    # Those that the views call.
    assert {row["name"].split(".")[1].split("(")[0] for row in functions} == {
        "is_direct", "streams_of", "view_streams", "view_consumers", "view_capture", "view_workers",
    }  # fmt: skip
    await denied(connection, PUBLISH_SECRETS, "select headrace_granted.view_streams(null)", READ_SECRETS)
    assert await connection.fetchval("select headrace_granted.streams_of('any')") is None


async def test_every_function_that_runs_as_the_owner_checks_a_grant_first(database: store.Database) -> None:
    bodies = await database.fetch(
        """select p.proname::text as name, p.prosrc as body, p.proconfig as settings from pg_proc as p
           where p.pronamespace = 'headrace_granted'::regnamespace and p.prosecdef"""
    )
    assert len(bodies) > 90
    for row in bodies:
        assert row["settings"] == ["search_path=pg_catalog, pg_temp"], row["name"]
        if row["name"] not in ("declare_stream", "stream_for", "streams_of"):
            assert row["body"].split("begin", 1)[1].strip().startswith("perform headrace_internal.require_"), row[
                "name"
            ]


async def test_default_privileges_open_nothing(database: store.Database, login: Login) -> None:
    """Rights that Postgres gives to everyone by default, or an owner gave for its other functions."""
    app = await login()
    await database.fetch("alter default privileges grant execute on functions to public")
    try:
        await store.migrate(database, reinstall=True)
        await store.create_stream(database, "later")
        found = await database.fetch(
            """select p.oid::regprocedure::text as name from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
               where n.nspname ~ '^headrace' and p.prosecdef and has_function_privilege($1::text, p.oid, 'execute')""",
            user(app),
        )
        assert {row["name"] for row in found} == {
            "headrace_internal.leave_witness(uuid)",
            "headrace_granted.streams_of(text)",
        }
        assert not await database.fetchval(
            "select has_table_privilege($1::text, 'headrace_streams.later', 'select')", user(app)
        )
    finally:
        await database.fetch("alter default privileges revoke execute on functions from public")


# --- who asks


async def test_set_role_gives_only_what_the_other_role_has(
    database: store.Database, login: Login, plain: Plain
) -> None:
    app, other, stranger = await login("publish"), await login("publish", streams=("secrets",)), await login()
    connection = await plain(app)
    await denied(connection, f"set role {user(other)}", f"set session authorization {user(database)}")
    await database.fetch(f"grant {user(stranger)} to {user(app)}")
    await connection.execute(f"set role {user(stranger)}")
    await denied(connection, "select headrace.publish('orders', 'a', '1')")
    await connection.execute("reset role")
    assert await connection.fetchval("select headrace.publish('orders', 'a', '1')") == 1
    await denied(connection, PUBLISH_SECRETS)


async def test_a_role_that_does_not_inherit_has_to_set_its_role(
    database: store.Database, login: Login, plain: Plain
) -> None:
    group, member = await login("publish"), await login()
    await database.fetch(f"alter role {user(member)} noinherit")
    await database.fetch(f"grant {user(group)} to {user(member)}")
    connection = await plain(member)
    await denied(connection, "select headrace.publish('orders', 'a', '1')")
    await connection.execute(f"set role {user(group)}")
    assert await connection.fetchval("select headrace.publish('orders', 'a', '1')") == 1
    await denied(connection, PUBLISH_SECRETS)


async def test_a_group_s_privilege_does_not_spread_to_the_member_s_other_streams(
    database: store.Database, login: Login, plain: Plain
) -> None:
    group, member = await login("publish"), await login("consume", streams=("secrets",))
    await database.fetch(f"grant {user(group)} to {user(member)}")
    connection = await plain(member)
    assert await connection.fetchval("select headrace.publish('orders', 'a', '1')") == 1
    await denied(connection, PUBLISH_SECRETS)
    with pytest.raises(HeadraceError, match="may not consume"):
        await store.messages(member, "orders")


async def test_a_grant_ends_at_once_for_a_session_at_work(database: store.Database, login: Login, plain: Plain) -> None:
    """Also for a prepared statement, and within a transaction that began before."""
    app = await login("publish", "observe")
    connection = await plain(app)
    statement = await connection.prepare("select headrace.publish('orders', 'a', '1')")
    assert await statement.fetchval() == 1
    transaction = connection.transaction()
    await transaction.start()
    assert await statement.fetchval() == 2
    await store.revoke(database, "publish", user(app))
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match=f"headrace grant publish {user(app)} --stream orders"):
        await statement.fetchval()
    await transaction.rollback()
    await denied(connection, PUBLISH_SECRETS)
    await store.grant(database, "publish", user(app), ["orders"])
    assert await statement.fetchval() == 3


async def test_a_role_of_the_name_of_a_dropped_one_gets_nothing(
    database: store.Database, login: Login, plain: Plain
) -> None:
    app, other = await login("publish", streams=("secrets",)), await login("publish")
    name = user(app)
    with pytest.raises(Exception, match="cannot be dropped because some objects depend on it"):
        await database.fetch(f"drop role {name}")
    await app.close()
    await database.fetch(f"drop owned by {name}")
    await database.fetch(f"drop role {name}")
    assert [one.exists for one in await store.grants(database) if one.role == name] == [False]
    await database.fetch(f"create role {name} login password 'secret'")
    connection = await plain(app)
    await denied(connection, PUBLISH_SECRETS)
    await database.fetch(f"grant {user(other)} to {name}")  # reaches the functions, by another grant
    await store.grant(database, "observe", user(other), ["orders"])
    await denied(connection, PUBLISH_SECRETS)
    await store.grant(database, "observe", name, ["orders"])
    await store.migrate(database, reinstall=True)
    await denied(connection, PUBLISH_SECRETS)
    assert {(one.role, one.privilege) for one in await store.grants(database)} == {
        (name, "observe"), (user(other), "publish"), (user(other), "observe"),
    }  # fmt: skip


async def test_a_dropped_role_s_session_ends_with_an_error(
    database: store.Database, login: Login, plain: Plain
) -> None:
    app = await login("publish")
    connection = await plain(app)
    assert await connection.fetchval("select headrace.publish('orders', 'a', '1')") == 1
    await app.close()
    await database.fetch(f"drop owned by {user(app)}")
    await database.fetch(f"drop role {user(app)}")
    with pytest.raises(asyncpg.PostgresError):
        await connection.fetchval("select headrace.publish('orders', 'a', '1')")
    await database.fetch(f"create role {user(app)}")  # for the end of the test
    assert await store.publish(database, "orders", "a", "1") == 2


async def test_only_a_superuser_may_truncate_a_table_of_the_system(database: store.Database, login: Login) -> None:
    """By this the grants of a superuser are left out, without a query."""
    app = await login("publish")
    for role in ("pg_write_all_data", "pg_read_all_data"):
        await database.fetch(f"grant {role} to {user(app)}")
    await database.fetch(f"alter role {user(app)} createrole createdb replication bypassrls")
    assert await store.publish(app, "orders", "a", "1") == 1
    await database.fetch(f"alter role {user(app)} superuser")
    assert await database.fetchval(f"select has_table_privilege('{user(app)}', 'pg_catalog.pg_authid', 'truncate')")
    await database.fetch(f"alter role {user(app)} nosuperuser")


# --- code of the role


async def test_a_view_of_a_role_opens_nothing_to_it_or_to_others(
    database: store.Database, login: Login, plain: Plain
) -> None:
    """Whether it runs with the rights of its owner or of its reader."""
    await dead_secret(database)
    app, stranger = await login("publish"), await login()
    await database.fetch(f"create schema shop authorization {user(app)}")
    try:
        connection, reader = await plain(app), await plain(stranger)
        await connection.execute("create view shop.letters as select * from headrace.dead_letters")
        has_invokers = connection.get_server_version().major >= 15
        await connection.execute(
            f"create view shop.invoked {'with (security_invoker = true)' if has_invokers else ''} as select * from headrace.dead_letters"
        )
        await connection.execute("create view shop.held as select * from headrace.in_flight")
        await connection.execute(
            "grant usage on schema shop to public; grant select on all tables in schema shop to public"
        )
        for session in (connection, reader):
            assert await session.fetch("select * from shop.letters") == []
            assert await session.fetch("select * from shop.held") == []
        assert await connection.fetch("select * from shop.invoked") == []
        if has_invokers:
            await denied(reader, "select * from shop.invoked", READ_SECRETS)
        assert len(await database.fetch("select * from shop.letters")) == 1  # a superuser sees all
    finally:
        await database.fetch("drop schema shop cascade")


async def test_a_condition_of_a_role_sees_no_row_of_another_stream(
    database: store.Database, login: Login, plain: Plain
) -> None:
    """A cheap function in WHERE would run before the view's own condition, if the view were no barrier."""
    await dead_secret(database)
    app = await login("consume")
    await database.fetch(f"create schema shop authorization {user(app)}")
    try:
        connection = await plain(app)
        seen: list[str] = []
        connection.add_log_listener(lambda _, message: seen.append(message.message))
        await connection.execute(
            "create function shop.peek(text) returns boolean language plpgsql cost 0.0001 as $$begin raise notice 'saw %', $1; return true; end$$"
        )
        for view in (
            "streams where shop.peek(name)",
            "consumers where shop.peek(stream)",
            "dead_letters where shop.peek(data::text)",
        ):
            await connection.fetch(f"select * from headrace.{view}")
        await connection.fetch("select * from headrace_granted.consumers where shop.peek(name)")
        await asyncio.sleep(0)
        assert {line for line in seen if "secrets" in line or "spy" in line} == set()
        assert "saw orders" in seen
    finally:
        await database.fetch("drop schema shop cascade")


async def test_functions_of_the_role_that_run_as_another_open_nothing(
    database: store.Database, login: Login, plain: Plain
) -> None:
    """A role calls the function of a role that has more: it gets that role's tables, but the grants are those of the session."""
    app, richer = await login("publish"), await login("publish", streams=("secrets",))
    await database.fetch(f"create schema shop authorization {user(richer)}")
    try:
        connection = await plain(richer)
        await connection.execute(
            "create function shop.f() returns bigint language sql security definer as $$ select headrace.publish('secrets', 'a', '1') $$"
        )
        await connection.execute("grant usage on schema shop to public")
        caller = await plain(app)
        await denied(caller, "select shop.f()")
        assert await connection.fetchval("select shop.f()") == 3
    finally:
        await database.fetch("drop schema shop cascade")


async def test_what_a_role_puts_on_its_search_path_is_not_called_by_functions_of_the_owner(
    database: store.Database, login: Login, plain: Plain
) -> None:
    app = await login("publish", "consume")
    await database.fetch(f"create schema evil authorization {user(app)}")
    try:
        connection = await plain(app)
        for name, arguments, result in (
            ("has_schema_privilege", "text, text", "boolean"), ("has_table_privilege", "text, text", "boolean"),
            ("has_table_privilege", "text, text, text", "boolean"), ("pg_has_role", "text, oid, text", "boolean"),
            ("quote_ident", "text", "text"), ("current_setting", "text", "text"), ("coalesce_any", "text", "text"),
            ("to_regrole", "text", "regrole"), ("format", "text", "text"), ("clock_timestamp", "", "timestamptz"),
            ("pg_notify", "text, text", "void"), ("pg_current_xact_id", "", "xid8"), ("cardinality", "text[]", "int"),
        ):  # fmt: skip
            await connection.execute(
                f"""create function evil.{name}({arguments}) returns {result} language plpgsql as $$begin
                    if current_user <> '{user(app)}' then create table evil.caught as select current_user; end if;
                    raise exception 'evil {name} as %', current_user; end$$"""
            )
        await connection.execute(
            """create function evil.same(text, text) returns boolean language plpgsql as $$begin raise exception 'evil as %', current_user; end$$;
               create operator evil.= (leftarg = text, rightarg = text, function = evil.same);
               create type evil.int8multirange as (a int);
               create domain evil.text as pg_catalog.text;
               create temp table grants (stream_id int, role text, privilege text);
               create temp table streams (id int, name text, relation text);
               create temp table message_ids (stream_id int, message_id text);
               create temp table consumers (id int, stream_id int);
               create function pg_temp.format(text, text) returns text language sql as $$ select 'x' $$;
               set search_path = evil, pg_temp, pg_catalog, public"""
        )
        number = await store.consumer_id(database, "orders", "ship")
        # The functions of the schema headrace run as the caller, and may well call what the caller put in their way.
        with pytest.raises(asyncpg.PostgresError):
            await connection.execute("select headrace_granted.publish_message('secrets', 'a', '1', null)")
        assert await connection.fetchval(
            "select (headrace_granted.publish_with_options('orders'::pg_catalog.text, '{a}'::pg_catalog.text[], '{1}', null, '{\"message_id\": \"once\"}')).seq"
        )
        # Without the driver's own statements, which call the role's functions, too.
        await connection.execute(
            f"select headrace_granted.lease({number}, '{uuid4()}', row(10, 10, 1000000, false), pg_catalog.clock_timestamp(), null, null, null, false)"
        )
        assert (
            await database.fetchval("select count(*) from headrace_internal.leases where consumer_id = $1", number) == 1
        )
        assert await database.fetchval("select to_regclass('evil.caught')") is None
    finally:
        await database.fetch("drop schema evil cascade")


# --- text


NAMES = [
    "x'); drop schema headrace cascade; --", 'a"b', "a''b", "a\\'; select 1; --", "$$; drop table x; $$", "%s%I%L", "public", "none",
    "ORDERS", "orders ", "é" * 30, "current_user", "pg_monitor\\",
]  # fmt: skip


async def test_names_are_never_read_as_sql(database: store.Database, login: Login, plain: Plain) -> None:
    """Of streams in calls of a role, and of roles in the commands and in the SQL that they print."""
    app = await login("publish", "consume")
    connection = await plain(app)
    for name in NAMES:
        with pytest.raises(DENIED):
            await connection.fetchval("select headrace.publish($1, 'a', '1')", name)
        with pytest.raises(HeadraceError):
            await store.messages(app, name)
        with pytest.raises(HeadraceError):
            await store.grant(database, "publish", name, ["orders"])
    for name in NAMES:
        if name in ("public", "none", "current_user"):  # Postgres has no role of these names, or warns
            continue
        quoted = '"' + name.replace('"', '""') + '"'
        role = f"r {uuid4().hex[:8]} {name}"[:60]
        quoted = '"' + role.replace('"', '""') + '"'
        if len(role.encode()) > 63:
            continue
        await database.fetch(f"create role {quoted}")
        try:
            await store.grant(database, "publish", role, ["orders"])
            session = await database.connect()
            try:
                await session.execute(f"set role {quoted}")
                assert await session.fetchval("select headrace.publish('orders', 'a', '1')")
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await session.fetchval("select headrace.publish('secrets', 'a', '1')")
                await session.execute("reset role")
                await session.execute(store.revoke_sql("publish", role, ["orders"]))
                await session.execute(store.grant_sql("observe", role))
                assert (
                    await session.fetchval("select count(*) from headrace_internal.grants where role = $1", role) == 1
                )
            finally:
                await session.close()
            assert await store.revoke(database, "observe", role) == 1
        finally:
            await database.fetch(f"drop owned by {quoted}")
            await database.fetch(f"drop role {quoted}")


async def test_the_command_in_an_error_is_safe_to_copy_into_a_shell(login: Login, plain: Plain) -> None:
    """The name of the stream comes from the caller, and another person copies the command."""
    app = await login("publish")
    connection = await plain(app)
    for name in ("x; rm -rf ~", "$(id)", "`id`", "a'b", "a b", "a\nb", "--database=elsewhere", "orders.eu-1"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError) as caught:
            await connection.fetchval("select headrace.publish($1, 'a', '1')", name)
        command = str(caught.value).partition("can allow it: ")[2]
        words = ["headrace", "grant", "publish", user(app), "--stream", name]
        assert shlex.split(command) == words


# --- arguments


async def test_arguments_of_one_stream_reach_no_lease_of_another(database: store.Database, login: Login) -> None:
    """Its own consumer, with the leases and messages of another."""
    app = await login("consume")
    spy = await store.consumer_id(database, "secrets", "spy")
    ship = await store.consumer_id(database, "orders", "ship")
    batch = await store.lease(database, spy, uuid4(), 10)
    assert batch.lease_id is not None
    await app.fetch(
        "select headrace_internal.settle_outcomes($1, $2, '{}', '{}', '{}')",
        ship,
        [batch.lease_id],
    )
    await app.fetch("select headrace_internal.extend_leases($1, $2)", ship, [batch.lease_id])
    await app.fetch("select headrace_internal.mark_started($1, $2, $3)", ship, [batch.lease_id] * 2, batch.seqs)
    with pytest.raises((asyncpg.PostgresError, HeadraceError)):
        await app.fetch(
            "select headrace_internal.ack_messages($1, $2, $3, clock_timestamp(), null)",
            ship,
            [batch.lease_id] * 2,
            batch.seqs,
        )
    with pytest.raises(HeadraceError, match="may not consume"):
        await app.fetch("select headrace_internal.subscribe_consumers($1, '1 minute')", [ship, spy])
    with pytest.raises(HeadraceError):
        await app.fetch("select headrace_internal.republish('orders', 'secrets', null, false)")
    held = await database.fetchrow("select held, started from headrace_internal.leases where consumer_id = $1", spy)
    assert (held["held"], list(held["started"] or [])) == (2, [])


async def test_a_heartbeat_is_neither_dated_ahead_nor_large(database: store.Database, login: Login) -> None:
    """One that is dated ahead would block upgrades for ever, since it counts as an old process at work."""
    app = await login("publish")
    await app.fetch("select headrace_internal.record_heartbeat($1, '{\"revision\": 1}', '2200-01-01')", uuid4())
    assert await database.fetchval("select bool_and(seen_at <= clock_timestamp()) from headrace_internal.workers")
    with pytest.raises(HeadraceError, match="128 KiB"):
        await app.fetch("select headrace_internal.record_heartbeat($1, $2)", uuid4(), json.dumps("x" * 2_000_000))


async def test_secrets_of_push_consumers_are_for_administrators(database: store.Database, login: Login) -> None:
    """Not for a role that may consume, by any way on which settings are read."""
    spec = ConsumerSpec(stream="orders", name="hook")
    declared = await store.declare_consumer(database, spec)
    await database.fetch(
        "update headrace_internal.consumers set push = $2 where id = $1", declared.id,
        json.dumps({"url": "https://user:pw@example.com/path?token=hidden", "secret": "hidden", "headers": {"a": "hidden"}}),
    )  # fmt: skip
    app, observer, admin = await login("consume"), await login("observe"), await login("admin")
    connection = app
    for role in (app, observer):
        texts = [str(row) for row in await role.fetch("select * from headrace_internal.consumers")]
        texts += [str(row) for row in await role.fetch("select * from headrace_internal.consumer_info('orders', null)")]
        texts += [str(row) for row in await role.fetch("select * from headrace.consumers")]
        assert texts
        assert "hidden" not in "".join(texts)
    assert "hidden" not in str(
        await connection.fetchval("select headrace_internal.settings_of_consumer($1)", declared.id)
    )
    assert "hidden" in str(await admin.fetchval("select headrace_internal.settings_of_consumer($1)", declared.id))


async def test_a_worker_s_reader_sees_its_stream_only(database: store.Database, login: Login) -> None:
    """All reads of messages that the store has, by the number of the other consumer and by the name of the other stream."""
    app = await login("consume")
    reader = Reader(
        app, ConsumerSpec(stream="secrets", name="spy"), await store.consumer_id(database, "secrets", "spy"), None
    )  # type: ignore[arg-type]
    await publish(database, "k3", stream="secrets")
    for call in (
        store.dead_letters(app, reader.id), store.peek(app, reader.id, limit=1), store.messages(app, "secrets"),
        app.fetch("select * from headrace_internal.messages_at(2, '{1}')"),
        app.fetch("select * from headrace_internal.key_states('secrets', 3, 'k3')"),
        app.fetch("select * from headrace_internal.blocked_key_page($1, 10)", reader.id),
    ):  # fmt: skip
        with pytest.raises(HeadraceError, match=r"may not consume the stream 'secrets'.*headrace grant consume"):
            await call


async def test_rights_that_were_given_by_hand_hold_until_a_grant_replaces_them(
    database: store.Database, login: Login, plain: Plain
) -> None:
    """A role that reads a public view has no grant. One with a grant has what the grant allows."""
    await dead_secret(database)
    analyst = await login()
    connection = await plain(analyst)
    await denied(connection, READ_SECRETS)
    await database.fetch(f"grant usage on schema headrace to {user(analyst)}")
    await database.fetch(f"grant select on headrace.dead_letters to {user(analyst)}")
    assert len(await connection.fetch(READ_SECRETS)) == 1
    await store.migrate(database, reinstall=True)
    assert len(await connection.fetch(READ_SECRETS)) == 1
    await store.grant(database, "publish", user(analyst), ["orders"])
    assert await connection.fetch(READ_SECRETS) == []
    await store.revoke(database, "publish", user(analyst))
    await denied(connection, READ_SECRETS, PUBLISH_SECRETS)


async def test_a_publisher_can_t_use_up_the_ids_of_webhooks(
    database: store.Database, login: Login, plain: Plain
) -> None:
    """A delivery whose id was published before would be lost."""
    app, admin = await login("publish"), await login("admin")
    connection = await plain(app)
    for sql in (
        "select headrace.publish('orders', 'a', '1', p_message_id => 'headrace:webhook:1')",
        "select headrace.publish_many('orders', '{a,b}', array['1', '2']::json[], p_message_ids => '{x,headrace:webhook:1}')",
        "select headrace.publish_with_options('orders', '{a,b}', '{1,2}', null, '[{}, {\"message_id\": \"x\", \"message_id\": \"headrace:webhook:1\"}]')",
        "select headrace.publish_with_options('orders', '{a}', '{1}', null, '{\"message_id\": \"headrace\\u003awebhook:1\"}')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not administer the stream 'orders'"):
            await connection.execute(sql)
        await (await plain(admin)).execute(sql)
    await connection.execute("select headrace.publish('orders', 'a', '1', p_message_id => 'mine')")
    await connection.execute(
        "select headrace.publish_many('orders', '{a,b}', array['1', '2']::json[], p_message_ids => '{y,null}')"
    )


async def test_objects_of_others_in_the_schema_stop_no_upgrade_and_never_run_as_the_owner(
    empty_dsn: str, database: store.Database
) -> None:
    """A superuser's helper, and the function of a role that could create there, before and after the schema changes hands."""
    owner, guest = f"owner_{uuid4().hex[:12]}", f"guest_{uuid4().hex[:12]}"
    root = store.Database(empty_dsn)
    await root.open()
    for name in (owner, guest):
        await root.fetch(f"create role {name} login password 'secret'")
    own = store.Database(as_role(empty_dsn, owner))
    try:
        await root.fetch(
            f"do $$ begin execute format('grant create on database %I to {owner}', current_database()); end $$"
        )
        await own.open()
        await store.migrate(own)
        await root.fetch("create function headrace.helper() returns int language sql as 'select 1'")
        await root.fetch("create view headrace.mine as select 1 as a")
        await root.fetch(f"grant usage, create on schema headrace to {guest}")
        session = await asyncpg.connect(as_role(empty_dsn, guest))
        await session.execute(
            "create function headrace.evil() returns text language sql security definer as 'select current_user::text'"
        )
        await session.close()
        await store.migrate(own, reinstall=True)
        await store.create_stream(own, "orders")
        await store.grant(own, "publish", guest, ["orders"])
        await store.revoke(own, "publish", guest)
        await store.migrate(root, owner=f"new_{owner}")
        await store.migrate(root, reinstall=True)
        assert await root.fetchval("select headrace.evil()") == guest
        assert await root.fetchval("select headrace.helper()") == 1
    finally:
        await own.close()
        for name in (owner, guest, f"new_{owner}"):
            if await root.fetchval("select exists (select from pg_roles where rolname = $1)", name):
                await root.fetch(f"drop owned by {name} cascade")
                await root.fetch(f"drop role {name}")
        await root.close()


async def test_an_entry_of_the_audit_log_in_another_name_has_the_role_that_wrote_it(
    database: store.Database, login: Login, plain: Plain
) -> None:
    role = await login("admin")
    connection = await plain(role)
    forge = (
        "select headrace_granted.record_change('ops', 'console', 'stream.delete', 'orders', 'stream', 'orders', '{}')"
    )
    await connection.execute(forge)
    await denied(
        connection,
        f"set role {user(database)}",
        f"set session authorization {user(database)}",
        "insert into headrace_internal.audit (id, via, role, action, object_kind, object_name, details)"
        " values (1, 'console', 'postgres', 'stream.delete', 'stream', 'orders', '{}')",
        "update headrace_internal.audit set role = 'postgres'",
        "delete from headrace_internal.audit",
    )
    [entry] = await store.changes(database, actor="ops")
    assert (entry.actor, entry.via, entry.role) == ("ops", "console", user(role))
