"""Dumps in all forms, of a database in the middle of its work, restored on servers whose transaction ids are far
behind or far ahead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from headrace import store
from headrace.embedded.binaries import Installation, find_installation
from headrace.model.errors import NotGranted, SchemaError, SequenceBehind
from tests.backup.scene import Scene, seqs
from tests.store.test_dump_and_restore import call, programs_for
from tests.support.copies import copy_of, require_programs
from tests.support.readers import publish
from tests.support.servers import opened

pytestmark = [pytest.mark.asyncio, pytest.mark.process]

OURS = "--schema=headrace*"


@pytest_asyncio.fixture
async def scene(database: store.Database) -> AsyncIterator[Scene]:
    """The database in the middle of its work."""
    scene = Scene(database.dsn)
    await scene.set(database)
    yield scene
    await scene.end()


class Dumps:
    """The programs that dump a database and restore the dump, in a directory of the test."""

    def __init__(self, programs: Installation, directory: Path) -> None:
        self._programs, self._directory = programs, directory

    async def dump(self, dsn: str, *options: str, name: str = "dump") -> Path:
        await call(self._programs.program("pg_dump"), *options, "--file", self._directory / name, "--dbname", dsn)
        return self._directory / name

    async def restore(self, dump: Path, dsn: str, *options: str) -> None:
        await call(self._programs.program("pg_restore"), "--exit-on-error", *options, "--dbname", dsn, dump)


@pytest_asyncio.fixture
async def dumps(database: store.Database, tmp_path: Path) -> Dumps:
    return Dumps(await programs_for(database), tmp_path)


@pytest.mark.parametrize(
    "old",
    [pytest.param(old, marks=pytest.mark.long if old in (14, 16) else pytest.mark.torture) for old in range(14, 18)],
)
async def test_a_dump_of_an_older_major_version_goes_on_in_the_newest(old: int, tmp_path: Path) -> None:
    """Not every server has lz4, by which messages are compressed where it is there."""
    before, after = require_programs(old), require_programs(18, "pg_dump", "pg_restore")
    dumps = Dumps(after, tmp_path)
    with copy_of(before) as source, copy_of(after) as target:
        for copy in (source, target):
            copy.initdb()
            copy.start()
        async with opened(source.url) as database:
            await store.migrate(database)
            scene = Scene(source.url)
            await scene.set(database)
            dump = await dumps.dump(source.url, "--format=custom", "--no-toast-compression")
            await scene.end()
        await dumps.restore(dump, target.url, "--single-transaction")
        async with opened(target.url) as restored:
            await scene.goes_on(restored)


@pytest.mark.parametrize(
    "direction", [pytest.param(one, marks=pytest.mark.long) for one in ("far behind", "far ahead")]
)
async def test_a_dump_goes_on_in_a_cluster_with_other_transaction_ids(direction: str, tmp_path: Path) -> None:
    """Those in cursors and rows are of the other cluster: they were not given here yet, or long ago."""
    programs = find_installation()
    dumps = Dumps(programs, tmp_path)
    with copy_of(programs) as young, copy_of(programs) as old:
        young.initdb()
        old.initdb()
        old.advance_xids(7, 1_500_000_000)
        old.start()
        young.start()
        source, target = (old, young) if direction == "far behind" else (young, old)
        async with opened(source.url) as database:
            await store.migrate(database)
            scene = Scene(source.url)
            await scene.set(database)
            dump = await dumps.dump(source.url, "--format=custom")
            await scene.end()
        await dumps.restore(dump, target.url, "--single-transaction")
        async with opened(target.url) as restored:
            stamp = await restored.fetchval(
                "select mark_stamp::text::bigint >> 32 from headrace_internal.cursors where mark_stamp is not null limit 1"
            )
            now = await restored.fetchval("select pg_current_xact_id()::text::bigint >> 32")
            assert (stamp, now) == ((7, 0) if direction == "far behind" else (0, 7))
            await scene.goes_on(restored)


@pytest.mark.long
async def test_holes_are_kept_while_other_transactions_get_the_ids_of_a_dump(tmp_path: Path) -> None:
    """The new cluster is only a little behind, so it gives the ids of the old transactions to its own."""
    programs = find_installation()
    dumps = Dumps(programs, tmp_path)
    with copy_of(programs) as source, copy_of(programs) as target:
        for copy in (source, target):
            copy.initdb()
        source.advance_xids(0, 50_000)
        source.start()
        target.start()
        async with opened(source.url) as database:
            await store.migrate(database)
            scene = Scene(source.url)
            await scene.set(database)
            dump = await dumps.dump(source.url, "--format=custom")
            holders = await database.fetchval(
                "select frozen::text::bigint[] from headrace_internal.cursors where frozen <> '{}'"
            )
            await scene.end()
        await dumps.restore(dump, target.url, "--single-transaction")
        target.stop()
        target.advance_xids(0, min(holders) - 2)
        target.start()
        async with opened(target.url) as restored:
            sessions = [await asyncpg.connect(target.url) for _ in range(8)]
            for session in sessions:
                await session.execute("begin")
                await session.execute("select headrace.publish('orders', 'again', '{}')")
            given = [await session.fetchval("select pg_current_xact_id()::text::bigint") for session in sessions]
            assert set(given) & set(holders), "no id was given again, so the test has no point"
            reader = scene.reader(restored, "ship")
            await publish(restored, "fresh")
            found = await reader.drain("cid")
            for session in reversed(sessions):
                await session.execute("commit")
                found += await reader.drain("cid")
                await session.close()
            assert len(found) == len(set(found))
            assert set(await seqs(restored)) - set(found) == {1, 2} | await waiting(restored, reader.id)
            await scene.goes_on(restored, already=found)


async def waiting(database: store.Database, consumer: int) -> set[int]:
    """The messages that the consumer holds or that wait."""
    rows = await database.fetch(
        """select m.seq from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m
           where l.consumer_id = $1
           union select seq from headrace_internal.parked where consumer_id = $1
           union select seq from headrace_internal.tails where consumer_id = $1
           union select seq from headrace_internal.dead_letters where consumer_id = $1""",
        consumer,
    )
    return {row["seq"] for row in rows}


async def test_a_parallel_dump_restored_in_parallel_goes_on(scene: Scene, dumps: Dumps, empty_dsn: str) -> None:
    dump = await dumps.dump(scene.dsn, "--format=directory", "--jobs=4")
    await dumps.restore(dump, empty_dsn, "--jobs=4")
    async with opened(empty_dsn) as restored:
        await scene.goes_on(restored)


async def test_a_dump_of_the_schemas_of_headrace_alone_goes_on(scene: Scene, dumps: Dumps, empty_dsn: str) -> None:
    dump = await dumps.dump(scene.dsn, "--format=custom", OURS)
    await dumps.restore(dump, empty_dsn, "--single-transaction")
    async with opened(empty_dsn) as restored:
        assert await store.migrate(restored) == []
        await scene.goes_on(restored)


PARTS = {
    "sections": (("--section=pre-data",), ("--section=data", "--jobs=2"), ("--section=post-data", "--jobs=2")),
    "schema, data": (("--schema-only",), ("--data-only", "--disable-triggers")),
}


@pytest.mark.parametrize("parts", PARTS)
async def test_the_schema_and_the_data_may_be_restored_one_after_the_other(
    scene: Scene, dumps: Dumps, empty_dsn: str, parts: str
) -> None:
    """Foreign keys are checked at the end, since the data is not in their order."""
    dump = await dumps.dump(scene.dsn, "--format=custom")
    for options in PARTS[parts]:
        await dumps.restore(dump, empty_dsn, *options)
    async with opened(empty_dsn) as restored:
        await scene.goes_on(restored)


async def test_a_database_without_its_data_is_refused_with_what_to_do(
    scene: Scene, dumps: Dumps, empty_dsn: str
) -> None:
    dump = await dumps.dump(scene.dsn, "--format=custom", "--schema-only")
    await dumps.restore(dump, empty_dsn)
    async with opened(empty_dsn) as restored:
        with pytest.raises(SchemaError, match="restored without its data"):
            await store.migrate(restored)
        with pytest.raises(SchemaError, match="restored without its data"):
            await store.require_current_schema(restored)


async def test_the_data_alone_is_refused_by_a_database_that_has_the_schema(
    scene: Scene, dumps: Dumps, empty_dsn: str
) -> None:
    async with opened(empty_dsn) as other:
        await store.migrate(other)
        dump = await dumps.dump(scene.dsn, "--format=custom", "--data-only")
        with pytest.raises(AssertionError, match=r"already exists|does not exist"):
            await dumps.restore(dump, empty_dsn, "--single-transaction")
        assert await other.fetch("select * from headrace_internal.streams") == []
        assert await store.migrate(other) == []


async def test_a_dump_without_the_messages_says_that_its_sequences_are_behind(
    scene: Scene, dumps: Dumps, empty_dsn: str
) -> None:
    """The positions are those of messages that are gone."""
    dump = await dumps.dump(scene.dsn, "--format=custom", "--exclude-table-data=headrace_streams.*")
    await dumps.restore(dump, empty_dsn, "--single-transaction")
    async with opened(empty_dsn) as restored:
        reader = scene.reader(restored, "audit")
        ship = scene.reader(restored, "ship")
        scene.clock.advance(100)
        if await restored.fetch("select * from headrace.sequences_behind()"):
            with pytest.raises(SequenceBehind, match="mend_sequences"):
                await ship.lease()
            await restored.fetch("select * from headrace.mend_sequences()")
        await ship.drain("cid")
        await reader.drain("cid")
        await publish(restored, "new")
        (last,) = await seqs(restored)
        assert await ship.drain("cid") == [last]
        assert await reader.drain("cid") == [last]


async def test_grants_in_a_dump_count_on_another_server_only_once_they_are_restored(
    database: store.Database, dumps: Dumps
) -> None:
    """There each of the two roles may have the number that the other one has here."""
    await store.create_stream(database, "orders")
    app, other = f"app_{uuid4().hex[:12]}", f"app_{uuid4().hex[:12]}"
    for role in (app, other):
        await database.fetch(f"create role {role} login password 'secret'")
    try:
        await store.grant(database, "publish", app, ["orders"])
        await store.grant(database, "observe", other, ["orders"])
        dump = await dumps.dump(database.dsn, "--format=custom")
    finally:
        for role in (app, other):
            await database.fetch(f"drop owned by {role}")
            await database.fetch(f"drop role {role}")
    with copy_of(await programs_for(database)) as target:
        target.initdb()
        target.start()
        server = store.Database(target.url)
        await server.open()
        try:
            for role in (other, app):
                await server.fetch(f"create role {role} login")
            await dumps.restore(dump, target.url)
            await server.fetch(
                "update headrace_internal.grants set role_oid = to_regrole(case role when $1 then $2 else $1 end)",
                app,
                other,
            )
            assert await store.migrate(server, reinstall=True)
            assert {(one.role, one.bound) for one in await store.grants(server)} == {(app, False), (other, False)}
            async with opened(target.url.replace("headrace@", f"{app}@")) as publisher:
                with pytest.raises(NotGranted, match="headrace grant restore"):
                    await store.publish(publisher, "orders", "a", "1")
                assert await store.restore_grants(server) == 2
                assert await store.publish(publisher, "orders", "a", "1") == 1
            async with opened(target.url.replace("headrace@", f"{other}@")) as observer:
                with pytest.raises(NotGranted, match="may not publish"):
                    await store.publish(observer, "orders", "a", "1")
        finally:
            await server.close()
