"""A publication is kept as a source needs it, whatever others do meanwhile, and no change is lost without a word."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import asyncpg
import pytest
import pytest_asyncio

from headrace import store
from headrace.model.capture import Finding
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database.catalog import load_tables
from headrace.sources.postgres.database.checks import check
from headrace.sources.postgres.database.fingerprints import Fingerprint, differences, fingerprints
from headrace.sources.postgres.database.publications import find_publication
from headrace.sources.postgres.database.upkeep import PublicationUpkeep, Upkeep
from headrace.sources.postgres.spec import PostgresSpec
from tests.runtime.running import eventually
from tests.sources.postgres.captured import Shop
from tests.sources.postgres.connections import APPLICATION, connected, ensure_publication, fresh
from tests.sources.postgres.test_writers import LIMITS, refused, until_captured, until_note, until_published

pytestmark = pytest.mark.asyncio

TABLES = ("public.orders", "public.t")


@pytest_asyncio.fixture
async def connection(empty_dsn: str) -> AsyncIterator[SourceConnection]:
    async with connected(empty_dsn) as connection:
        await connection.query(
            "create table orders (id int primary key, v int); create table t (id int primary key, v int); insert into t values (1, 1)"
        )
        yield connection


def spec(*tables: str, **settings: object) -> PostgresSpec:
    return PostgresSpec(name="shop", stream="shop", tables=tables or TABLES, **settings)  # type: ignore[arg-type]


async def ensure(connection: SourceConnection, name: str, wanted: PostgresSpec | None = None) -> Upkeep:
    """Look after the publication as another process would that takes the capture over."""
    return await ensure_publication(connection, wanted or spec(), name, captured_before=True)


@asynccontextmanager
async def session(dsn: str, *statements: str) -> AsyncIterator[SourceConnection]:
    """Another session, with a transaction open."""
    async with await SourceConnection.connect(dsn, application_name="other") as other:
        await other.query("begin")
        for statement in statements:
            await other.query(statement)
        yield other


async def named(connection: SourceConnection, name: str) -> set[str]:
    publication = await find_publication(connection, name)
    assert publication is not None
    return set(publication.named.values())


async def update(connection: SourceConnection) -> None:
    """Write as the application does. Raises what the server refuses."""
    await connection.query("update t set v = v + 1; delete from t where v < 0; update orders set v = 1")


async def test_a_table_that_was_taken_out_is_resynced_even_if_the_process_ends_before_it_could_ask_for_that(
    connection: SourceConnection,
) -> None:
    name = fresh()
    await ensure_publication(connection, spec(), name)
    await connection.query("alter table t drop constraint t_pkey")
    assert (await ensure(connection, name)).incomplete == []
    await connection.query("alter table t add primary key (id)")
    for _ in range(2):  # the first process ended here
        assert [table.name for table in (await ensure(connection, name)).incomplete] == ["public.t"]
    tables = list((await load_tables(connection, TABLES)).values())
    await PublicationUpkeep(spec(), name).resync_requested(
        connection, [one for one in tables if one.name == "public.t"]
    )
    assert (await ensure(connection, name)).incomplete == []
    assert await connection.query("select obj_description(oid) from pg_publication where pubname = $1", name) == [
        (None,)
    ]


async def test_other_tables_are_not_read_again_because_one_is_taken_out_or_replaced(
    connection: SourceConnection,
) -> None:
    async def orders() -> Fingerprint:
        tables = {"public.orders": (await load_tables(connection, TABLES))["public.orders"]}
        return (await fingerprints(connection, tables, name, ()))["public.orders"]

    name = fresh()
    await ensure_publication(connection, spec(), name)
    before = await orders()
    await connection.query("alter table t rename to old; create table t (id int primary key, v int)")
    await ensure(connection, name)
    assert await named(connection, name) == {*TABLES}
    await connection.query("alter table t replica identity nothing")
    await ensure(connection, name)
    assert await named(connection, name) == {"public.orders"}
    assert list(differences(before, await orders())) == []


async def test_while_another_session_locks_the_table_updates_of_no_table_are_published(
    connection: SourceConnection, empty_dsn: str
) -> None:
    name = fresh()
    await ensure_publication(connection, spec(), name)
    await connection.query("alter table t replica identity nothing")
    async with session(empty_dsn, "lock table t in share update exclusive mode"):  # as vacuum does
        upkeep = await ensure(connection, name)
        assert "Until then the publication has no updates and deletes" in upkeep.notes[0][0]
        assert upkeep.incomplete == []
        await update(connection)
        publication = await find_publication(connection, name)
        assert publication is not None
        assert publication.actions == {"insert", "truncate"}
    await ensure(connection, name)
    assert await named(connection, name) == {"public.orders"}
    await connection.query("alter table t replica identity default")
    assert {table.name for table in (await ensure(connection, name)).incomplete} == {*TABLES}
    publication = await find_publication(connection, name)
    assert publication is not None
    assert publication.actions == {"insert", "update", "delete", "truncate"}


async def test_a_table_is_added_again_when_no_open_transaction_has_written_to_it(
    connection: SourceConnection, empty_dsn: str
) -> None:
    name = fresh()
    await ensure_publication(connection, spec(), name)
    await connection.query("alter table t replica identity nothing")
    await ensure(connection, name)
    async with session(empty_dsn, "update t set v = 5") as other:
        await other.query("commit")
        await connection.query("alter table t replica identity default")
        await other.query("begin; update t set v = 6")
        upkeep = await ensure(connection, name)
        assert "as soon as no open transaction has written to it" in upkeep.notes[0][0]
        await update_beside(connection)
        await other.query("commit")
    assert [table.name for table in (await ensure(connection, name)).incomplete] == ["public.t"]


async def update_beside(connection: SourceConnection) -> None:
    """Other rows and tables are written to meanwhile."""
    await connection.query("insert into t values (2, 2); update orders set v = 1")


async def test_a_publication_of_an_older_version_loses_what_harms_writers(connection: SourceConnection) -> None:
    name = fresh()
    await connection.query(f"""
        create table heir () inherits (t); create table bare (id int, v int);
        create publication {name} for table orders, t, bare with (publish_via_partition_root = true)
    """)
    assert await named(connection, name) == {"public.orders", "public.t", "public.heir", "public.bare"}
    upkeep = await ensure(connection, name, spec(*TABLES, "public.bare"))
    assert await named(connection, name) == {"public.orders", "public.t"}
    assert [mend for _, mend in upkeep.notes] == ["alter table public.bare replica identity full;"]
    await connection.query("update t set v = 2; update heir set v = 2; update bare set v = 2")


async def test_a_source_whose_only_table_can_t_be_published_does_not_start(connection: SourceConnection) -> None:
    await connection.query("alter table t drop constraint t_pkey")
    with pytest.raises(Exception, match="would refuse all its updates and deletes"):
        await ensure_publication(connection, spec("public.t"), fresh())
    await update(connection)


async def test_inserts_of_a_table_without_a_key_are_captured(connection: SourceConnection) -> None:
    name = fresh()
    await connection.query("alter table t drop constraint t_pkey; create table p (id int) partition by range (id)")
    await ensure_publication(connection, spec("public.t", "public.p", actions=("insert", "truncate")), name)
    assert await named(connection, name) == {"public.t", "public.p"}
    await update(connection)


async def test_a_given_publication_that_harms_is_reported_and_left_alone(connection: SourceConnection) -> None:
    await connection.query("alter table t replica identity nothing; create publication given for all tables")
    upkeep = await ensure(connection, "given", spec(publication="given"))
    assert upkeep.stop is None
    ((reason, mend),) = upkeep.notes
    assert reason.startswith(
        "The server refuses all updates and deletes of public.t, because the publication given has it."
    )
    assert mend == "alter table public.t replica identity default;"
    with pytest.raises(Exception, match="replica identity"):
        await update(connection)
    await connection.query(mend)
    await update(connection)
    assert (await ensure(connection, "given", spec(publication="given"))).notes == []


async def test_a_publication_of_another_owner_is_left_alone_and_comes_with_the_statement(
    connection: SourceConnection, empty_dsn: str
) -> None:
    name, role = fresh(), fresh("role")
    await connection.query(f"create role {role}")
    try:
        await ensure_publication(connection, spec(), name)
        await connection.query(
            f"alter table orders owner to {role}; alter table t owner to {role}; alter table t replica identity nothing"
        )
        await connection.query(f"set role {role}")
        upkeep = await ensure(connection, name)
        assert await named(connection, name) == {*TABLES}
        ((reason, mend),) = upkeep.notes
        assert (
            f"has another owner, which can take the table out: alter publication {name} drop table only public.t;"
            in reason
        )
        assert mend == "alter table public.t replica identity default;"
    finally:
        await connection.query(f"reset role; drop owned by {role} cascade; drop role {role}")


async def test_a_role_that_lost_a_table_can_still_take_it_out_and_names_the_statement_that_adds_it(
    connection: SourceConnection,
) -> None:
    name, role = fresh(), fresh("role")
    await connection.query(f"create role {role}")
    try:
        await ensure_publication(connection, spec(), name)
        await connection.query(f"grant create on database {await database(connection)} to {role}")
        await connection.query(
            f"alter table orders owner to {role}; alter publication {name} owner to {role}; alter table t replica identity nothing"
        )
        await connection.query(f"set role {role}")
        await ensure(connection, name)
        assert await named(connection, name) == {"public.orders"}
        await connection.query("reset role; alter table t replica identity default")
        await connection.query(f"set role {role}")
        with pytest.raises(Exception, match=f"alter publication {name} add table only public.t;"):
            await ensure(connection, name)
    finally:
        await connection.query(f"reset role; drop owned by {role} cascade; drop role {role}")


async def database(connection: SourceConnection) -> str:
    ((name,),) = await connection.query("select quote_ident(current_database())")
    assert name is not None
    return name


async def errors(dsn: str, wanted: PostgresSpec) -> list[Finding]:
    return [finding for finding in await check(dsn, wanted, fresh()) if finding.level == "error"]


async def test_publications_of_others_that_make_the_server_refuse_writes_are_reported_with_what_corrects_it(
    connection: SourceConnection, empty_dsn: str
) -> None:
    if connection.version < 150000:
        pytest.skip("publications have columns, filters and schemas from PostgreSQL 15 on")
    harmful = {
        "create publication other for table t (v)": "alter publication other drop table only public.t;",
        "create publication other for table t where (v > 3)": "alter publication other drop table only public.t;",
        "create publication other for tables in schema public; alter table t replica identity nothing": "alter table public.t replica identity default;",
    }
    if connection.version >= 180000:
        harmful[
            "alter table t add g int generated always as (v) stored, replica identity full; create publication other for table t"
        ] = "alter publication other set (publish_generated_columns = stored);"
    for made, mend in harmful.items():
        await connection.query(made)
        found = [one for one in await errors(empty_dsn, spec()) if "the publication other has it" in one.message]
        assert [one.hint for one in found] == [mend], made
        with pytest.raises(Exception, match=r"(?i)replica identity|column list"):
            await update(connection)
        await connection.query(mend)
        await update(connection)
        assert await errors(empty_dsn, spec()) == []
        await connection.query("drop publication other; alter table t replica identity default")
    harmless = (
        "for table t (id, v)",
        "for table t where (id > 3)",
        "for table t with (publish = 'insert')",
        "for table orders",
    )
    for made in harmless:
        await connection.query(f"create publication other {made}")
        assert await errors(empty_dsn, spec()) == []
        await update(connection)
        await connection.query("drop publication other")


async def test_two_sources_of_one_table_both_take_it_out(shop: Shop) -> None:
    await shop.sql.execute("create table t (id int primary key, v int); insert into t values (1, 1)")
    await shop.source(tables=TABLES)
    await shop.source("again", tables=TABLES)
    async with shop.captured(LIMITS):
        await shop.until_running()
        await shop.until_running("again")
        await shop.sql.execute("alter table t drop constraint t_pkey")
        await until_published(shop, "orders")

        async def write() -> bool:
            return await refused(shop, "t") == []

        await eventually(write)
        await until_note(shop, "no primary key", name="again")
        await shop.sql.execute("update t set v = 9; alter table t add primary key (id)")
        await until_captured(shop, 10)


async def test_a_table_that_another_session_takes_out_is_put_back_and_read(shop: Shop) -> None:
    await shop.sql.execute("create table t (id int primary key, v int)")
    source = await shop.source(tables=TABLES, backfill=True)
    async with shop.captured(LIMITS):
        await shop.until_running()
        name = await shop.sql.fetchval(
            "select quote_ident(pubname) from pg_publication where pubname ~ '^headrace_shop'"
        )
        await shop.sql.execute(f"alter publication {name} drop table t")
        await shop.sql.execute("insert into t values (1, 7)")
        await until_published(shop, "orders", "t")

        async def is_read() -> bool:
            return any(one["record"] == {"id": 1, "v": 7} for one in await shop.stream())

        await eventually(is_read)
    assert {one.table for one in await store.backfills(shop.database, source.id)} == {*TABLES}


async def test_a_publication_that_another_session_gives_fewer_actions_is_corrected_and_the_tables_are_read(
    shop: Shop,
) -> None:
    await shop.sql.execute("create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)")
    source = await shop.source(tables=TABLES, backfill=False)
    async with shop.captured(LIMITS):
        await shop.until_running()
        await until_captured(shop, 7)
        await shop.sql.execute(
            f"alter publication {await _publication(shop)} set (publish = 'insert'); update t set v = 8"
        )

        async def is_read() -> bool:
            return {one["record"]["id"] for one in await shop.stream() if one["record"].get("v") == 8} == {1, 2}

        await eventually(is_read)
    assert {one.table for one in await store.backfills(shop.database, source.id)} == {*TABLES}


async def test_settings_with_more_actions_read_no_table_again(connection: SourceConnection) -> None:
    name = fresh()
    await ensure_publication(connection, spec(actions=("insert",)), name)
    upkeep = await ensure(connection, name)
    assert (upkeep.incomplete, upkeep.notes) == ([], [])


async def test_no_change_is_lost_of_a_transaction_that_is_open_while_a_table_is_out(shop: Shop) -> None:
    await shop.sql.execute(
        "create table t (id int primary key, v int); insert into t select g, 0 from generate_series(1, 20) as g"
    )
    await shop.source(tables=TABLES, backfill=True, mode="rows")
    other = await asyncpg.connect(shop.dsn)
    try:
        async with shop.captured(LIMITS):
            await shop.until_running()
            async with other.transaction():
                await other.execute("update t set v = 1 where id <= 10")
                await shop.sql.execute("alter publication " + await _publication(shop) + " drop table t")
                await shop.sql.execute("update t set v = 2 where id > 10")
                with anyio.move_on_after(0.5):
                    await until_published(shop, "orders", "t")
                await other.execute("update t set v = 1 where id <= 10")
            await until_published(shop, "orders", "t")

            async def is_equal() -> bool:
                rows = {row["id"]: row["v"] for row in await shop.sql.fetch("select id, v from t")}
                return rows == {one["record"]["id"]: one["record"]["v"] for one in (await shop.rows()).values()}

            await eventually(is_equal)
    finally:
        await other.close()


async def _publication(shop: Shop) -> str:
    name: str = await shop.sql.fetchval(
        "select quote_ident(pubname) from pg_publication where pubname ~ '^headrace_shop'"
    )
    return name


async def test_children_are_captured_only_if_they_are_named(shop: Shop) -> None:
    await shop.sql.execute("create table t (id int primary key, v int); create table c (primary key (id)) inherits (t)")
    await shop.source(tables=("public.t", "public.c"))
    async with shop.captured(LIMITS):
        await shop.until_running()
        await shop.sql.execute("insert into t values (1, 1); insert into c values (2, 2)")
        assert [one["metadata"]["table_name"] for one in await shop.until(2)] == ["t", "c"]
    found = await check(
        shop.dsn, PostgresSpec(name="x", stream="x", tables=("public.t",), publication=None), APPLICATION
    )
    assert any(
        "Tables that inherit from public.t are not captured with it: public.c" in finding.message for finding in found
    )
