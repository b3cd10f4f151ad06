"""Tables as the catalog describes them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from headrace.model.errors import ConfigurationError
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database.catalog import load_tables, table_with_oid
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.tables import Table, TableColumn
from tests.sources.postgres.connections import connected

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def connection(empty_dsn: str) -> AsyncIterator[SourceConnection]:
    async with connected(empty_dsn) as connection:
        yield connection


async def load(connection: SourceConnection, name: str, sql: str) -> Table:
    await connection.query(sql)
    return (await load_tables(connection, [name]))[name]


async def test_a_table_has_its_columns_in_order_without_those_that_were_dropped(connection: SourceConnection) -> None:
    table = await load(
        connection,
        "public.orders",
        "create table orders (id bigint primary key, gone int, note text not null); alter table orders drop gone",
    )
    assert (table.name, table.schema, table.relation) == ("public.orders", "public", "orders")
    assert table.columns == (TableColumn("id", 20, True), TableColumn("note", 25, True))
    assert (table.key, table.primary, table.identity, table.identity_columns) == (("id",), True, "d", ("id",))
    assert not table.partitioned


async def test_a_key_has_the_order_of_its_index_and_not_what_is_only_included(connection: SourceConnection) -> None:
    table = await load(connection, "public.t", "create table t (a int, b int, c int, primary key (c, a) include (b))")
    assert table.key == ("c", "a")
    assert table.identity_columns == ("c", "a")


async def test_without_a_primary_key_a_unique_index_over_what_is_not_null_is_the_key(
    connection: SourceConnection,
) -> None:
    table = await load(
        connection, "public.t",
        """create table t (a int not null, b int not null, c int, d int not null, e int not null);
           create unique index on t (c); create unique index on t (d) where d > 0; create unique index on t ((e + 1));
           create index on t (e); create unique index on t (a, b); alter table t add unique (d) deferrable""",
    )  # fmt: skip
    assert (table.key, table.primary, table.identity_columns) == (("a", "b"), False, ())


async def test_a_column_with_an_unvalidated_not_null_may_be_null(connection: SourceConnection) -> None:
    if connection.version < 180000:
        pytest.skip("not null is valid before PostgreSQL 18")
    table = await load(
        connection,
        "public.t",
        "create table t (a int unique, b int); alter table t add constraint n not null a not valid",
    )
    assert (table.key, table.columns[0].not_null) == ((), False)
    await connection.query("alter table t alter a set not null")
    table = (await load_tables(connection, ["public.t"]))["public.t"]
    assert (table.key, table.columns[0].not_null) == (("a",), True)


async def test_the_replica_identity_is_preferred_to_other_unique_indexes(connection: SourceConnection) -> None:
    table = await load(
        connection, "public.t",
        """create table t (a int not null, b int not null, c int not null); create unique index on t (a);
           create unique index wide on t (b, c); alter table t replica identity using index wide""",
    )  # fmt: skip
    assert (table.key, table.identity, table.identity_columns) == (("b", "c"), "i", ("b", "c"))


async def test_old_rows_are_known_as_far_as_the_replica_identity_goes(connection: SourceConnection) -> None:
    await connection.query("create table t (id int primary key, note text)")
    for identity, columns in (("full", ("id", "note")), ("nothing", ()), ("default", ("id",))):
        table = await load(connection, "public.t", f"alter table t replica identity {identity}")
        assert table.identity_columns == columns


async def test_a_table_without_any_key_has_none(connection: SourceConnection) -> None:
    table = await load(connection, "public.t", "create table t (a int)")
    assert (table.key, table.primary, table.identity_columns) == ((), False, ())


async def test_generated_columns_are_published_only_where_the_server_can(connection: SourceConnection) -> None:
    table = await load(
        connection, "public.t", "create table t (id int primary key, g int generated always as (id * 2) stored)"
    )
    assert [column.published for column in table.columns] == [True, connection.version >= 180000]
    if connection.version >= 180000:
        virtual = await load(
            connection, "public.v", "create table v (id int primary key, g int generated always as (id * 2) virtual)"
        )
        assert [column.published for column in virtual.columns] == [True, False]


async def test_a_publication_s_own_list_of_columns_counts(connection: SourceConnection) -> None:
    if connection.version < 150000:
        pytest.skip("publications have lists of columns from PostgreSQL 15 on")
    await connection.query(
        "create table t (id int primary key, a int, b int, g int generated always as (id) stored); create publication p for table t (id, b)"
    )
    table = (await load_tables(connection, ["public.t"], "p"))["public.t"]
    assert [column.name for column in table.columns if column.published] == ["id", "b"]


async def test_a_partitioned_table_has_the_rows_of_its_partitions(connection: SourceConnection) -> None:
    table = await load(
        connection, "public.t",
        """create table t (id int primary key) partition by range (id); create table t1 partition of t for values from (0) to (10);
           create table t2 partition of t for values from (10) to (20); insert into t select generate_series(0, 14); analyze t""",
    )  # fmt: skip
    assert (table.partitioned, table.estimate) == (True, 15)


async def test_the_root_of_a_partition_is_reported(connection: SourceConnection) -> None:
    root = await load(
        connection, 'public."Events"',
        """create table "Events" (id int primary key) partition by range (id);
           create table middle partition of "Events" for values from (0) to (10) partition by range (id);
           create table leaf partition of middle for values from (0) to (5)""",
    )  # fmt: skip
    ((leaf,),) = await connection.query("select 'leaf'::regclass::oid")
    found = await table_with_oid(connection, int(leaf or 0))
    assert found is not None
    assert (found[0].name, found[1]) == ("public.leaf", root.oid)
    assert await table_with_oid(connection, root.oid) == (root, None)


async def test_the_number_of_rows_is_unknown_before_the_table_is_analyzed(connection: SourceConnection) -> None:
    table = await load(
        connection, "public.t", "create table t (id int primary key); insert into t select generate_series(1, 100)"
    )
    assert table.estimate is None
    assert (await load(connection, "public.t", "analyze t")).estimate == 100


async def test_a_table_is_found_by_any_spelling_of_its_name_and_reported_by_its_canonical_one(
    connection: SourceConnection,
) -> None:
    await connection.query(
        """create schema "select"; create table "select"."Odd ""Name"" é" (id int); create table plain (id int)"""
    )
    names = ['"select"."Odd ""Name"" é"', 'public."plain"', "public.plain"]
    found = await load_tables(connection, names)
    assert [table.name for table in found.values()] == ['"select"."Odd ""Name"" é"', "public.plain", "public.plain"]
    assert list(found) == names


async def test_a_stream_is_not_taken_for_the_missing_table_that_it_is_called_as(connection: SourceConnection) -> None:
    await connection.query("create schema headrace_streams; create table headrace_streams.orders (seq bigint)")
    with pytest.raises(SourceStopped) as stopped:
        await load_tables(connection, ["public.orders"])
    assert str(stopped.value) == "The captured database has no table public.orders."


async def test_tables_that_are_missing_are_all_named_with_what_was_probably_meant(connection: SourceConnection) -> None:
    await connection.query(
        """create table orders (id int); create schema shop; create table shop.lines (id int); create table "Mixed" (id int)"""
    )
    with pytest.raises(SourceStopped) as stopped:
        await load_tables(connection, ["public.order", "public.lines", "public.mixed", "public.zebra", "public.orders"])
    assert str(stopped.value) == (
        "The captured database has no table public.order. Did you mean public.orders?"
        " The captured database has no table public.lines. Did you mean shop.lines?"
        ' The captured database has no table public.mixed. Did you mean public."Mixed"?'
        " The captured database has no table public.zebra."
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("create view t as select 1", "public.t is a view"),
        ("create materialized view t as select 1", "public.t is a materialized view"),
        ("create sequence t", "public.t is a sequence"),
        ("create unlogged table t (id int)", "public.t is unlogged, .*alter table public.t set logged"),
    ],
)
async def test_relations_without_changes_are_refused(connection: SourceConnection, sql: str, expected: str) -> None:
    await connection.query(sql)
    with pytest.raises(SourceStopped, match=expected):
        await load_tables(connection, ["public.t"])


async def test_the_system_s_own_tables_are_refused(connection: SourceConnection) -> None:
    with pytest.raises(SourceStopped, match="is a system table"):
        await load_tables(connection, ["pg_catalog.pg_class"])


async def test_a_name_that_can_t_be_says_what_would_be_right(connection: SourceConnection) -> None:
    with pytest.raises(ConfigurationError, match=r"such as public\.orders"):
        await load_tables(connection, ["orders"])


async def test_a_table_that_is_gone_is_none(connection: SourceConnection) -> None:
    assert await table_with_oid(connection, 1) is None
