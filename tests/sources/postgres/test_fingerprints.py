"""The parts of a table, and the differences by which its rows may have changed without a message."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog, fingerprints
from headrace.sources.postgres.database.digests import digest
from headrace.sources.postgres.database.fingerprints import Fingerprint, differences
from tests.sources.postgres.connections import connected

pytestmark = pytest.mark.asyncio

ACTIONS = ("insert", "update", "delete", "truncate")
PLAIN = "create table t (id int primary key, v text); insert into t values (1, 'a'); create publication p for table t"
PARTITIONED = """
    create table t (id int primary key, v text) partition by range (id);
    create table t1 partition of t for values from (0) to (10); create table t2 partition of t for values from (10) to (20);
    create table o partition of t for values from (60) to (70) partition by range (id);
    create table p partition of o for values from (60) to (70);
    insert into t values (1, 'a'), (11, 'b'); create publication p for table t with (publish_via_partition_root)
"""


@pytest_asyncio.fixture
async def connection(empty_dsn: str) -> AsyncIterator[SourceConnection]:
    async with connected(empty_dsn) as connection:
        yield connection


async def taken(connection: SourceConnection, actions: tuple[str, ...] = ACTIONS) -> tuple[str, Fingerprint]:
    """Return the digest and the fingerprint of the table."""
    tables = await catalog.load_tables(connection, ["public.t"])
    found = await fingerprints.fingerprints(connection, tables, "p", actions)
    oids = [table.oid for table in tables.values()]
    return await digest(connection, oids, ["public.t"], "p"), found["public.t"]


async def changed_by(connection: SourceConnection, *statements: str) -> list[str]:
    """Run the statements. Returns the differences, after a check that the digest shows the change of a fingerprint."""
    digest_before, before = await taken(connection)
    for statement in statements:
        await connection.query(statement)
    new_digest, now = await taken(connection)
    assert digest_before != new_digest or before == now
    return [difference.text for difference in differences(before, now)]


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (["insert into t values (2, 'b')", "analyze t"], []),
        (["alter table t add n int"], []),
        (["alter table t add n int default 5"], ["the column n was added with a default"]),
        (
            ["begin; alter table t add n int not null default 5; alter table t alter n drop default; commit"],
            ["the column n was added with a default"],
        ),
        (["alter table t add n uuid default gen_random_uuid()"], ["it was rewritten or truncated"]),
        (["alter table t alter v type text using upper(v)"], ["it was rewritten or truncated"]),
        (["alter table t alter v type varchar(20)"], ["it was rewritten or truncated", "the column v has another type"]),
        (["alter table t alter id type oid"], ["the column id has another type"]),
        (["truncate t"], ["it was rewritten or truncated"]),
        (["alter table t rename v to w"], ["the column v was renamed"]),
        (["alter table t drop v, add v text"], ["another column has the name v"]),
        (["alter table t rename id to nr"], ["the column id was renamed"]),
        (["alter table t drop v"], []),
        (["alter table t rename to u; alter table u rename to t"], []),
        (["alter table t drop constraint t_pkey; alter table t add primary key (v)"], ["it has another key"]),
        (["alter table t replica identity full"], []),
        (["drop table t; create table t (id int primary key)"], ["another table has its name"]),
        (["alter table t rename to u; create table t (id int primary key)"], ["another table has its name"]),
        (["alter publication p drop table t", "alter publication p add table t"], ["it was not in the publication for a while"]),
        (["drop publication p", "create publication p for all tables"], ["it was not in the publication for a while"]),
    ],
)  # fmt: skip
async def test_a_difference_of_a_table_is_found_if_it_may_change_rows_without_a_message(
    connection: SourceConnection, statements: list[str], expected: list[str]
) -> None:
    await connection.query(PLAIN)
    assert await changed_by(connection, *statements) == expected


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (["create table t3 partition of t for values from (20) to (30)"], ["a partition was attached"]),
        (["alter table t detach partition t1"], ["a partition was detached or dropped"]),
        (["alter table t detach partition t1 concurrently"], ["a partition was detached or dropped"]),
        (["drop table t1", "drop table t2"], ["2 partitions were detached or dropped"]),
        (["truncate t1"], ["a partition was rewritten or truncated"]),
        (["vacuum full t1"], ["a partition was rewritten or truncated"]),
        (["alter table t add n int default 5"], ["the column n was added with a default"]),
        (
            ["begin; alter table t add n int not null default 5; alter table t alter n drop default; commit"],
            ["the column n was added with a default"],
        ),
        (["alter table t1 rename to t9"], []),
        (
            ["alter table t detach partition t1", "alter table t attach partition t1 for values from (0) to (10)"],
            ["a partition was detached or not in the publication for a while"],
        ),
        (["vacuum t", "analyze t"], []),
        (
            [
                "create table m partition of t for values from (20) to (40) partition by range (id)",
                "create table m1 partition of m for values from (20) to (30)",
            ],
            ["a partition was attached"],
        ),
        (
            ["alter table o detach partition p", "alter table o attach partition p for values from (60) to (70)"],
            ["a partition was detached or not in the publication for a while"],
        ),
    ],
)
async def test_a_difference_of_partitions_is_found(
    connection: SourceConnection, statements: list[str], expected: list[str]
) -> None:
    await connection.query(PARTITIONED)
    assert await changed_by(connection, *statements) == expected


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (["alter type pair add attribute c int"], ["the type pair was altered"]),
        (["alter type pair rename attribute a to aa"], ["the type pair was altered"]),
        (["alter type pair drop attribute a"], ["the type pair was altered"]),
        (["alter type inner_pair add attribute z int"], ["the type inner_pair was altered"]),
        (["alter table other add z int"], ["the type other was altered"]),
        (["alter type mood rename value 'sad' to 'blue'"], ["the type mood was altered"]),
        (["alter type mood add value 'angry' before 'sad'"], []),
        (["alter type unused add attribute c int"], []),
    ],
)
async def test_types_are_looked_at_however_deep_they_are(
    connection: SourceConnection, statements: list[str], expected: list[str]
) -> None:
    await connection.query(
        """create type mood as enum ('sad', 'happy'); create type unused as (a int); create type inner_pair as (x mood, y int);
           create domain pairs as inner_pair[]; create type pair as (a int, b pairs); create table other (id int);
           create table t (id int primary key, p pair[], o other); create publication p for table t"""
    )
    assert await changed_by(connection, *statements) == expected


async def test_a_column_that_becomes_not_null_changes_the_digest_since_it_may_make_a_key(
    connection: SourceConnection,
) -> None:
    await connection.query("create table t (id int unique, v text); create publication p for table t")
    before, _ = await taken(connection)
    await connection.query("alter table t alter id set not null")
    assert (await taken(connection))[0] != before


async def test_options_of_the_publication_that_the_source_did_not_want_are_a_difference(
    connection: SourceConnection,
) -> None:
    await connection.query(PLAIN)
    _, before = await taken(connection)
    await connection.query("alter publication p set (publish = 'insert')")
    await connection.query("alter publication p set (publish = 'insert, update, delete, truncate')")
    _, now = await taken(connection)
    _, edited = await taken(connection, ("insert",))
    assert [one.text for one in differences(before, now)] == ["the options of the publication were set"]
    assert list(differences(before, edited)) == []


async def test_a_column_that_is_not_generated_any_more_is_a_difference(connection: SourceConnection) -> None:
    await connection.query(PLAIN + "; alter table t add n int generated always as (id * 2) stored")
    assert await changed_by(connection, "alter table t alter n drop expression") == [
        "the column n is not generated any more"
    ]


ABSENT = ["it was not in the publication for a while"]
LEAF_ABSENT = ["a partition was detached or not in the publication for a while"]


@pytest.mark.parametrize(
    ("since", "publication", "statements", "expected"),
    [
        (15, "tables in schema public", ["create schema s; alter table t set schema s; alter table s.t set schema public"], ABSENT),
        (15, "tables in schema public", ["alter publication p drop tables in schema public", "alter publication p add tables in schema public"], ABSENT),
        (15, "tables in schema public", ["create table t4 partition of t for values from (40) to (50)"], ["a partition was attached"]),
        (15, "tables in schema public", ["alter table t1 set (fillfactor = 50)"], []),
        (14, "table t1, t2, p", ["alter publication p drop table t2", "alter publication p add table t2"], LEAF_ABSENT),
        (14, "table t1, t2, o", ["alter publication p drop table o", "alter publication p add table o"], LEAF_ABSENT),
        (14, "table t, t1", ["alter publication p drop table t1", "alter publication p add table t1"], []),
        (14, "all tables", ["create table t4 (id int primary key)"], []),
        (19, "all tables", ["alter publication p set all tables except (table t)", "alter publication p set all tables", "select pg_stat_force_next_flush()"], ABSENT),
        (19, "all tables except (table t)", ["alter publication p set all tables"], ABSENT),
        (19, "all tables", ["alter publication p set all tables except (table t)"], []),
    ],
)  # fmt: skip
async def test_an_absence_from_a_given_publication_is_a_difference(
    connection: SourceConnection, since: int, publication: str, statements: list[str], expected: list[str]
) -> None:
    if connection.version < since * 10_000:
        pytest.skip(f"only from PostgreSQL {since} on")
    await connection.query(PARTITIONED + f"; drop publication p; create publication p for {publication}")
    assert await changed_by(connection, *statements) == expected


async def test_a_new_partition_may_have_rows_if_it_is_not_empty_or_is_locked(connection: SourceConnection) -> None:
    await connection.query("create table empty (id int); create table filled (id int); insert into filled values (1)")
    rows = await connection.query("select oid from pg_class where relname in ('empty', 'filled') order by relname")
    empty, filled = (int(oid or 0) for (oid,) in rows)
    assert not await fingerprints.with_rows(connection, [empty])
    assert await fingerprints.with_rows(connection, [empty, filled])


async def test_leaves_whose_changes_are_not_in_the_wal_are_named(connection: SourceConnection) -> None:
    await connection.query(PARTITIONED + "; create unlogged table u partition of t for values from (30) to (40)")
    _, found = await taken(connection)
    assert await fingerprints.names(connection, fingerprints.not_captured(found)) == "u"


@pytest.mark.torture
async def test_a_look_at_five_thousand_partitions_is_cheap(connection: SourceConnection) -> None:
    await connection.query("create table t (id int primary key, v text) partition by range (id)")
    for start in range(0, 5000, 500):
        await connection.query(
            f"""do $$ begin for n in {start}..{start + 499} loop
                execute format('create table t_%s partition of t for values from (%s) to (%s)', n, n * 10, n * 10 + 10);
                end loop; end $$"""
        )
    await connection.query(
        "create publication p for table t with (publish_via_partition_root); analyze pg_inherits; analyze pg_class"
    )
    await taken(connection)
    tables = await catalog.load_tables(connection, ["public.t"])
    started_at = time.monotonic()
    for _ in range(10):
        await digest(connection, [tables["public.t"].oid], ["public.t"], "p")
    assert (time.monotonic() - started_at) / 10 < 0.2
