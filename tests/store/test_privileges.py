"""The rights of roles other than the schema's owner. Each test connects as such a role."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from headrace import App, store
from headrace.model.errors import DatabaseRefused, HeadraceError, NotGranted, SchemaError
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.specs import ConsumerSpec
from headrace.store.connections.statements import for_grants
from tests.conftest import Declare
from tests.support.readers import Reader, publish
from tests.support.roles import Login, user
from tests.upgrade.revisions import add_revision

pytestmark = pytest.mark.asyncio


async def refused(call: Awaitable[Any]) -> None:
    with pytest.raises((DatabaseRefused, asyncpg.InsufficientPrivilegeError)):
        await call


async def consumer(database: store.Database, stream: str) -> int:
    return int(
        await database.fetchval(
            "select c.id from headrace_internal.consumers c join headrace_internal.streams s on s.id = c.stream_id where s.name = $1",
            stream,
        )
    )


async def test_a_publisher_of_one_stream_can_do_nothing_else(database: store.Database, login: Login) -> None:
    app = await login("publish")
    assert await store.publish(app, "orders", "a", "1") == 1
    assert await store.publish(app, "orders", "a", "1", options=PublishOptions(message_id="once")) == 2
    assert await store.publish(app, "orders", "a", "1", options=PublishOptions(message_id="once")) == 2
    assert await store.publish(app, "orders", "a", "1", options=PublishOptions(unique_key="x")) == 3
    assert (
        await store.publish_many(
            app,
            "orders",
            ["a", "a"],
            ["1", "2"],
            options=PublishOptions.of_many(len(["1", "2"]), unique_keys=["x", "x"]),
        )
        == 0
    )
    with pytest.raises(NotGranted, match=rf"headrace grant publish {user(app)} --stream secrets"):
        await store.publish(app, "secrets", "a", "1", options=PublishOptions(unique_key="x"))
    async with app.transaction() as connection:
        assert await store.publish_many(connection, "orders", ["a", "b"], ["3", "4"]) == 2
    with pytest.raises(NotGranted, match=rf"headrace grant publish {user(app)} --stream secrets"):
        await store.publish(app, "secrets", "a", "1")
    with pytest.raises(NotGranted, match="headrace grant"):
        await store.publish(app, "x'); drop schema headrace cascade; --", "a", "1")
    orders, spy = await consumer(database, "orders"), await consumer(database, "secrets")
    for number in (orders, spy):
        await refused(store.lease(app, number, uuid4(), 10))
        await refused(store.peek(app, number, limit=10))
        await refused(store.seek(app, number, 0))
        await refused(store.delete_consumer(app, number, force=True))
    for name in ("orders", "secrets"):
        await refused(store.delete_stream(app, name, force=True))
    await refused(store.create_stream(app, "another"))
    for view in ("streams", "consumers", "in_flight", "parked", "dead_letters", "sources"):
        assert await app.fetch(f"select * from headrace.{view}") == []
    await refused(app.fetch("select * from headrace.workers"))


async def test_nobody_reaches_the_tables_and_functions_behind(login: Login) -> None:
    app = await login("publish", "consume", "observe", streams=())
    connection = await asyncpg.connect(app.dsn)  # without the rewriting of the store
    try:
        for sql in (
            "select * from headrace_streams.secrets",
            "insert into headrace_streams.orders (key, data) values ('a', '1')",
            "select nextval('headrace_streams.\"orders.seq\"')",
            "select * from headrace_internal.leases",
            "insert into headrace_internal.grants (role, privilege) values (current_user, 'admin')",
            "select headrace_internal.publish_message('secrets', 'a', '1', null)",
            "select headrace_internal.create_message_table(null)",
            "select headrace_internal.apply_grants()",
            "create table headrace_streams.mine (id int)",
            "create function headrace.mine() returns int language sql as 'select 1'",
            "select headrace.mend_sequences()",
            "select headrace.create_stream('mine')",
            "insert into headrace_granted.tokens (id, name, digest, scopes) values ('a', 'a', '', '{admin}')",
            "set role pg_write_all_data",
        ):
            await refused(connection.execute(sql))
        assert await connection.fetch("select * from headrace_granted.secrets") == []
        assert await connection.fetch("select * from headrace_granted.tokens") == []
    finally:
        await connection.close()


async def test_own_objects_of_the_same_names_open_nothing(database: store.Database, login: Login) -> None:
    app = await login("publish")
    await database.fetch(f"create schema evil authorization {user(app)}")
    connection = await asyncpg.connect(app.dsn)
    try:
        for sql in (
            "create function evil.has_schema_privilege(text, text) returns boolean language sql as 'select true'",
            "create function evil.current_setting(text) returns text language sql as $$select 'postgres'$$",
            "create function evil.always(text, text) returns boolean language sql as 'select true'",
            "create operator evil.= (leftarg = text, rightarg = text, function = evil.always)",
            "create temp table streams (id int, name text)",
            "create temp table pg_roles as select 1 as oid, 'x' as rolname, false as rolsuper",
            "create temp table grants (role text)",
            "set search_path = evil, pg_temp, pg_catalog",
        ):
            await connection.execute(sql)
        assert await connection.fetch("select * from headrace.consumers") == []
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetchval("select headrace.publish('secrets', 'a', '1')")
        assert await connection.fetchval("select headrace.publish('orders', 'a', '1')") == 1
    finally:
        await connection.close()
        await database.fetch("drop schema evil cascade")


async def test_a_function_that_runs_in_a_superusers_session_opens_nothing(
    database: store.Database, login: Login
) -> None:
    """As when autovacuum evaluates the index expressions of a table."""
    app = await login("publish")
    await database.fetch(f"create schema trap authorization {user(app)}")
    async with app.transaction() as connection:
        await connection.execute(
            """create function trap.f(text) returns text language plpgsql security definer
               as $$begin return headrace.publish('secrets', 'a', '1')::text; end$$"""
        )
    try:
        with pytest.raises(NotGranted, match="may not publish"):
            await database.fetchval("select trap.f('a')")
    finally:
        await database.fetch("drop schema trap cascade")


async def test_a_worker_runs_a_consumer_completely_and_reads_no_other_stream(
    database: store.Database, login: Login, declare: Declare
) -> None:
    app = await login("consume")
    owners = await declare(max_deliver=2)
    await publish(database, "a", "a", "b", "c")
    reader = Reader(app, owners.spec, owners.id, owners.clock)
    assert (await store.declare_consumer(app, owners.spec)).changed == {}
    batch = await reader.lease(limit=4)
    assert batch.seqs == [1, 2, 3, 4]
    async with app.transaction() as transaction:
        await reader.ack_within(transaction, batch, 4)
    await reader.nack(batch, 1, delay=0.0)
    await reader.reject(batch, 3)
    assert batch.lease_id is not None
    assert await store.extend_leases(app, reader.id, [batch.lease_id], now=owners.clock.now) == [batch.lease_id]
    assert not await store.has_idle_owner(app, reader.id, uuid4())
    await reader.release(batch, 2)
    assert await reader.drain() == [1, 2]
    assert [letter.seq for letter in await reader.dead_letters()] == [3]
    assert (await reader.info()).lag == 0
    with pytest.raises(NotGranted, match="grant admin"):
        await store.declare_consumer(app, ConsumerSpec(stream="orders", name="ship", max_deliver=7))
    with pytest.raises(NotGranted, match="grant admin"):
        await store.declare_consumer(app, ConsumerSpec(stream="orders", name="new"))
    spy = await consumer(database, "secrets")
    await refused(store.lease(app, spy, uuid4(), 10))
    await refused(store.peek(app, spy, limit=10))
    await refused(store.messages(app, "secrets"))
    await refused(store.publish(app, "orders", "a", "1"))
    assert {row["stream"] for row in await app.fetch("select stream from headrace.consumers")} == {"orders"}


async def test_an_app_runs_as_a_role_with_grants(database: store.Database, login: Login) -> None:
    role = await login("consume", "publish")
    app, got = App(role.dsn), asyncio.Event()

    @app.consumer("orders", name="ship")
    async def ship(total: int) -> None:
        got.set()

    async with app.running():
        await app.publish("orders", "a", 1)
        await asyncio.wait_for(got.wait(), 20)


async def test_an_observer_sees_figures_and_no_message(database: store.Database, login: Login) -> None:
    app = await login("observe", streams=())
    await publish(database, "a")
    assert {row["name"] for row in await app.fetch("select name from headrace.streams")} == {"orders", "secrets"}
    assert len(await store.consumers(app)) == 2
    assert await app.fetch("select * from headrace.workers") == []
    assert await app.fetch("select * from headrace.dead_letters") == []
    spy = await consumer(database, "secrets")
    await refused(store.peek(app, spy, limit=10))
    await refused(store.lease(app, spy, uuid4(), 10))
    await refused(store.messages(app, "secrets"))
    await refused(store.publish(app, "orders", "a", "1"))


async def test_an_administrator_does_everything_and_owns_nothing(database: store.Database, login: Login) -> None:
    app = await login("admin", streams=())
    assert app.maintains
    await store.create_stream(app, "new")
    declared = await store.declare_consumer(app, ConsumerSpec(stream="new", name="all"))
    await store.publish(app, "new", "a", "1")
    await store.seek(app, declared.id, 0)
    owner = await database.fetchval("select tableowner from pg_tables where tablename = 'new'")
    assert owner != user(app)
    await refused(store.grant(app, "admin", user(app)))
    await store.delete_stream(app, "new", force=True)


async def test_members_and_set_role_count_and_a_revoke_acts_at_once(database: store.Database, login: Login) -> None:
    group, member = await login("publish"), await login()
    await database.fetch(f"grant {user(group)} to {user(member)}")
    connection = await asyncpg.connect(member.dsn)
    try:
        assert await connection.fetchval("select headrace.publish('orders', 'a', '1')") == 1
        await connection.execute(f"set role {user(group)}")
        assert await connection.fetchval("select headrace.publish('orders', 'a', '1')") == 2
        assert await store.revoke(database, "publish", user(group)) == 1
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for schema headrace"):
            await connection.fetchval("select headrace.publish('orders', 'a', '1')")
    finally:
        await connection.close()
    assert await store.grants(database) == []


async def test_grants_survive_an_upgrade_and_a_role_that_may_not_migrate_says_so(
    database: store.Database, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await login("publish")
    assert await store.migrate(app) == []
    assert await store.migrate(database, reinstall=True) == ["installed the server functions"]
    assert await store.publish(app, "orders", "a", "1") == 1
    with pytest.raises(
        SchemaError, match=r"belongs to the role .* may not change it\. Run the command as a member of the owner"
    ):
        await store.migrate(app, reinstall=True)
    newer = add_revision(monkeypatch, "select 1")
    with pytest.raises(SchemaError, match=rf"needs revision {newer}.*may not change it.*headrace migrate"):
        await store.migrate(app)
    stranger = await login()
    with pytest.raises(NotGranted, match=f"headrace grant .* {user(stranger)}"):
        await store.publish(stranger, "orders", "a", "1")
    with pytest.raises(HeadraceError):
        await store.migrate(stranger)


@pytest.mark.parametrize("first", [True, False])
async def test_the_schema_and_later_streams_belong_to_the_owner(empty_dsn: str, first: bool) -> None:
    owner = f"owner_{uuid4().hex[:12]}"
    database = store.Database(empty_dsn)
    await database.open()
    try:
        if not first:
            await store.migrate(database)
            await store.create_stream(database, "early")
        await store.migrate(database, owner=owner)
        assert await store.migrate(database, owner=owner) == []
        await store.create_stream(database, "late")
        others = await database.fetch(
            """select relname::text from pg_class where relnamespace in (select oid from pg_namespace where nspname ~ '^headrace')
               and pg_get_userbyid(relowner) <> $1 and relkind in ('r', 'p', 'S', 'v')""",
            owner,
        )
        assert others == []
        assert not await database.fetchval("select rolcanlogin from pg_roles where rolname = $1", owner)
    finally:
        await database.fetch(f"drop owned by {owner} cascade")
        await database.fetch(f"drop role {owner}")
        await database.close()


async def test_no_function_that_runs_as_its_owner_is_open_to_everyone(database: store.Database) -> None:
    rows = await database.fetch("""
        select p.oid::regprocedure::text as name, p.proconfig from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
        where n.nspname ~ '^headrace' and (prosecdef or n.nspname = 'headrace') and has_function_privilege('public', p.oid, 'execute')""")
    names = {row["name"] for row in rows}
    assert names == {"headrace_internal.leave_witness(uuid)", "headrace_granted.streams_of(text)"}
    pinned = await database.fetch(
        "select oid from pg_proc where prosecdef and not proconfig::text like '%search_path%'"
    )
    assert pinned == []


async def test_only_names_of_the_schema_are_rewritten_and_no_data() -> None:
    """Handlers send their own statements over the same connections."""
    for before, after in (
        ("select headrace_internal.lease($1)", "select headrace_granted.lease($1)"),
        ("select 'headrace_internal.a', headrace_internal.b()", "select 'headrace_internal.a', headrace_granted.b()"),
        ("select 'it''s headrace_internal.a'", "select 'it''s headrace_internal.a'"),
        (r"select E'\' headrace_internal.a', headrace_internal.b", r"select E'\' headrace_internal.a', headrace_granted.b"),
        ('select "headrace_internal.a"', 'select "headrace_internal.a"'),
        ("select $a$ headrace_internal.a $$ $a$, $$headrace_internal.$$", "select $a$ headrace_internal.a $$ $a$, $$headrace_internal.$$"),
        ("select 1 -- headrace_internal.a\n, headrace_internal.b", "select 1 -- headrace_internal.a\n, headrace_granted.b"),
        ("/* headrace_internal. ' */ select headrace_internal.b($1, $2)", "/* headrace_internal. ' */ select headrace_granted.b($1, $2)"),
        ("select my_headrace_internal.a", "select my_headrace_internal.a"),
    ):  # fmt: skip
        assert for_grants(before) == after
        filler = "x" * 20_000
        assert for_grants(f"{before} /* {filler} */") == f"{after} /* {filler} */"


async def test_a_handler_s_own_statements_keep_their_text(database: store.Database, login: Login) -> None:
    app = await login("consume")
    await database.fetch("create table notes (note text)")
    await database.fetch(f"grant all on notes to {user(app)}")
    async with app.transaction() as connection:
        await connection.execute("insert into notes values ('see headrace_internal.leases')")
    assert await database.fetchval("select note from notes") == "see headrace_internal.leases"


async def test_everything_that_the_store_calls_is_there_for_roles_with_grants(database: store.Database) -> None:
    """Under the same name, or it is the owner's alone."""
    owners = {
        "apply_grants", "grants", "remove_stale_grants", "restore_grants",       # grants
        "features", "workers", "draft_of_a_view",              # upgrades
        "managed",                                             # configuration as code
    }  # fmt: skip
    found = {
        row[0]
        for row in await database.fetch(
            """select proname::text from pg_proc where pronamespace = 'headrace_granted'::regnamespace
               union select relname::text from pg_class where relnamespace = 'headrace_granted'::regnamespace"""
        )
    }
    package = Path(store.__file__).parent
    called: set[str] = set()
    for file in [*(package / "catalog").glob("*.py"), *(package / "messages").glob("*.py"), *(package / "capture").glob("*.py"),
                 *(package / "maintenance").glob("*.py"), *(package / "watching").glob("*.py"), *(package / "database").glob("*.py")]:  # fmt: skip
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documentation = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
                called |= set(re.findall(r"\bheadrace_internal\.(\w+)", node.value))
    assert len(called) > 90
    assert called - found == owners
