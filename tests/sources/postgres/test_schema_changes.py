"""Tables change their columns, names and keys during capture. Capture continues, and other tables are not affected."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from headrace import store
from headrace.sources.postgres.limits import CaptureLimits
from tests.support import captures

pytestmark = pytest.mark.asyncio


class Log:
    """A table `t` and another table `other`, captured in mode `changes`, and the messages of `t`."""

    def __init__(self, database: store.Database, connection: Any) -> None:
        self._database = database
        self._connection = connection
        self._seq = 0
        self._others = 0

    async def do(self, *statements: str) -> list[dict[str, Any]]:
        """Run the statements one by one, and change the other table, too. Returns the resulting messages of `t`."""
        for statement in statements:
            await self._connection.execute(statement)
        self._others += 1
        await captures.until_all_is_captured(
            self._database, "log", f"insert into other values ({self._others})", on=self._connection
        )
        rows = await self._database.fetch(
            "select seq, key, data from headrace_streams.log where seq > $1 order by seq", self._seq
        )
        self._seq = rows[-1]["seq"]
        found = [{**json.loads(row["data"]), "key": row["key"]} for row in rows]
        others = [one for one in found if one["metadata"]["table_name"] == "other"]
        assert [one["record"] for one in others] == [{"id": self._others}], "the other table is disturbed"
        assert await self._database.fetchval("select count(*) from headrace_internal.capture_failures") == 0
        return [one for one in found if one["metadata"]["table_name"] != "other"]

    async def records(self, *statements: str) -> list[Any]:
        return [one["record"] for one in await self.do(*statements)]


@asynccontextmanager
async def opened(database: store.Database, *backlog: str, limits: CaptureLimits | None = None) -> AsyncIterator[Log]:
    """Capture both tables. `backlog` runs before capture starts, so its changes are older than the catalog."""
    connection = await asyncpg.connect(database.dsn)
    try:
        await captures.set_in_database(connection, "logical_decoding_work_mem", "64kB")
        await connection.execute("create table t (id int primary key, v text); create table other (id int primary key)")
        await captures.make(database, stream="log", tables=("public.t", "public.other"), backfill=False)
        async with captures.slots_dropped(database.dsn):
            if backlog:
                async with captures.capturing(database.dsn):
                    await captures.until_tracked(database, "log")
                for statement in backlog:
                    await connection.execute(statement)
            async with captures.capturing(database.dsn, limits=limits):
                await captures.until_tracked(database, "log")
                yield Log(database, connection)
    finally:
        await connection.close()


async def test_a_column_is_added_with_and_without_a_default(database: store.Database) -> None:
    async with opened(database) as log:
        assert await log.records(
            "insert into t values (1, 'a')",
            "alter table t add n int",
            "insert into t values (2, 'b', 3)",
            "alter table t add d text default 'new'",
            "insert into t values (3, 'c', 4)",
            "update t set v = 'A' where id = 1",
        ) == [
            {"id": 1, "v": "a"},
            {"id": 2, "v": "b", "n": 3},
            {"id": 3, "v": "c", "n": 4, "d": "new"},
            {"id": 1, "v": "A", "n": None, "d": "new"},
        ]


async def test_a_column_is_dropped_and_another_added_in_one_transaction_with_changes(database: store.Database) -> None:
    async with opened(database) as log:
        assert await log.records(
            "insert into t values (1, 'a')",
            "begin; insert into t values (2, 'b'); alter table t drop v; insert into t values (3); alter table t add w int;"
            " insert into t values (4, 5); update t set w = 9 where id = 1; commit",
        ) == [
            {"id": 1, "v": "a"},
            {"id": 2, "v": "b"},
            {"id": 3},
            {"id": 4, "w": 5},
            {"id": 1, "w": 9},
        ]


async def test_a_column_is_renamed(database: store.Database) -> None:
    async with opened(database) as log:
        assert await log.records(
            "insert into t values (1, 'a')", "alter table t rename v to w", "update t set w = 'b' where id = 1"
        ) == [{"id": 1, "v": "a"}, {"id": 1, "w": "b"}]


async def test_a_column_of_the_key_is_renamed(database: store.Database) -> None:
    async with opened(database) as log:
        messages = await log.do(
            "insert into t values (1, 'a')", "alter table t rename id to nr", "update t set v = 'b'", "delete from t"
        )
        assert [(one["action"], one["key"], one["record"]) for one in messages] == [
            ("insert", "public.t.1", {"id": 1, "v": "a"}),
            ("update", "public.t.1", {"nr": 1, "v": "b"}),
            ("delete", "public.t.1", {"nr": 1}),
        ]


async def test_the_type_of_a_column_is_changed_and_so_is_its_json(database: store.Database) -> None:
    async with opened(database) as log:
        # The table is rewritten, which changes no row.
        assert await log.records(
            "insert into t values (1, '5')",
            "alter table t alter v type int using v::int",
            "insert into t values (2, 6)",
            "create type mood as enum ('sad', 'happy')",
            "alter table t alter v type mood using case when v > 5 then 'happy' else 'sad' end::mood",
            "insert into t values (3, 'happy')",
            "alter table t alter v type mood[] using array[v]",
            "update t set v = v || 'sad'::mood where id = 2",
        ) == [{"id": 1, "v": "5"}, {"id": 2, "v": 6}, {"id": 3, "v": "happy"}, {"id": 2, "v": ["happy", "sad"]}]


async def test_a_table_is_renamed_and_is_captured_under_its_old_name(database: store.Database) -> None:
    async with opened(database) as log:
        messages = await log.do(
            "insert into t values (1, 'a')", "alter table t rename to renamed", "update renamed set v = 'b'"
        )
        assert [(one["key"], one["record"]["v"]) for one in messages] == [("public.t.1", "a"), ("public.t.1", "b")]


async def test_another_primary_key_makes_other_keys(database: store.Database) -> None:
    async with opened(database) as log:
        [first] = await log.do("insert into t values (1, 'a')")
        [second] = await log.do(
            "alter table t drop constraint t_pkey, add primary key (v)", "insert into t values (1, 'b')"
        )
        assert [first["key"], second["key"]] == ["public.t.1", "public.t.b"]


async def test_changes_from_before_a_primary_key_of_a_new_column_have_their_old_key(database: store.Database) -> None:
    backlog = (
        "insert into t values (1, 'a')",
        "update t set v = 'b'",
        "alter table t add k text default 'new'; alter table t drop constraint t_pkey, add primary key (k); alter table t drop id",
        "delete from t",
    )
    async with opened(database, *backlog) as log:
        messages = await log.do("insert into t values ('c', 'k')")
        assert [one["key"] for one in messages] == ["public.t.1", "public.t.1", "public.t.new", "public.t.k"]


async def test_changes_from_before_a_column_was_dropped_renamed_or_of_another_type(database: store.Database) -> None:
    backlog = (
        "insert into t values (1, 'a')",
        "alter table t rename v to w",
        "insert into t values (2, 'b')",
        "create type pair as (a int, b text); alter table t alter w type pair using (id, w)::pair",
        "insert into t values (3, (3, 'c'))",
        "alter table t drop w; drop type pair; alter table t rename id to nr",
    )
    async with opened(database, *backlog) as log:
        # The definition of a dropped type is no longer known.
        assert await log.records("insert into t values (4)") == [
            {"id": 1, "v": "a"},
            {"id": 2, "w": "b"},
            {"id": 3, "w": "(3,c)"},
            {"nr": 4},
        ]


async def test_changes_from_before_a_table_was_dropped_and_made_again(database: store.Database) -> None:
    backlog = (
        "insert into t values (1, 'a')",
        "drop table t",
        "create table t (id int primary key, w int)",
        "insert into t values (2, 3)",
    )
    async with opened(database, *backlog) as log:
        # The new table was not published yet when its first row was written. Now it is.
        await captures.until(database, "select true from pg_publication_tables where tablename = 't'")
        assert await log.records("insert into t values (4, 5)") == [{"id": 1, "v": "a"}, {"id": 4, "w": 5}]


async def test_a_table_is_dropped_and_made_again_and_is_captured_on(
    database: store.Database,
) -> None:
    async with opened(database, limits=CaptureLimits(table_check_interval=0.5)) as log:
        assert await log.records("insert into t values (1, 'a')", "drop table t") == [{"id": 1, "v": "a"}]
        assert await log.records("create table t (id int primary key, w int); insert into t values (1, 2)") in (
            [],  # if the table was not published yet
            [{"id": 1, "w": 2}],
        )
        # The new table is published within seconds. A backfill would read its earlier rows, but is not
        # requested here.
        await captures.until(database, "select true from pg_publication_tables where tablename = 't'")
        assert await log.records("insert into t values (2, 3)") == [{"id": 2, "w": 3}]


async def test_a_replica_identity_that_becomes_full_and_default_again_only_changes_old_values(
    database: store.Database,
) -> None:
    async with opened(database) as log:
        messages = await log.do(
            "insert into t values (1, 'a')",
            "update t set v = 'b'",
            "alter table t replica identity full",
            "update t set v = 'c'",
            "alter table t replica identity default",
            "update t set v = 'd'",
            "alter table t replica identity full; delete from t",
        )
        assert [(one["action"], one["record"]["v"], one["changes"]) for one in messages] == [
            ("insert", "a", None),
            ("update", "b", None),
            ("update", "c", {"v": "b"}),
            ("update", "d", None),
            ("delete", "d", None),
        ]


async def test_a_large_transaction_with_a_schema_change_that_is_rolled_back_to_a_savepoint(
    database: store.Database,
) -> None:
    async with opened(database) as log:
        many = "insert into t select g, repeat('x', 200) from generate_series({}, {} + 999) as g"
        records = await log.records(
            f"begin; {many.format(1000, 1000)}; savepoint s; alter table t add w int default 7; {many.format(5000, 5000)};"
            f" rollback to s; {many.format(9000, 9000)}; alter table t add u int default 8; {many.format(20000, 20000)}; commit",
        )
        assert [record["id"] for record in records] == [*range(1000, 2000), *range(9000, 10000), *range(20000, 21000)]
        assert [len(record) for record in records] == [2] * 2000 + [3] * 1000


async def test_rolled_back_parts_of_a_streamed_transaction_are_not_published(database: store.Database) -> None:
    async with opened(database) as log:
        many = "insert into t select g, repeat('x', 200) from generate_series({0}, {0} + 999) as g"
        records = await log.records(
            f"begin; {many.format(1000)}; savepoint a; {many.format(2000)}; savepoint b; {many.format(3000)}; release b; rollback to a;"
            f" {many.format(4000)}; savepoint c; {many.format(5000)}; commit",
            f"begin; {many.format(6000)}; rollback",
        )
        assert [record["id"] for record in records] == [*range(1000, 2000), *range(4000, 6000)]
        # Statistics are updated a moment later.
        await captures.until(
            database,
            "select sum(stream_count) > 0 from pg_stat_replication_slots join pg_replication_slots using (slot_name)"
            " where database = current_database()",
        )
