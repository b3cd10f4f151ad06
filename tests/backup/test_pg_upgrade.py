"""`pg_upgrade` to a later major version, in the middle of the work."""

from __future__ import annotations

import anyio
import pytest

from headrace import store
from headrace.model.outcomes import Settlement
from tests.backup.scene import Scene
from tests.support.copies import copy_of, require_programs
from tests.support.servers import opened

pytestmark = [pytest.mark.asyncio, pytest.mark.process]

VERSIONS = [
    pytest.param(old, 18, marks=pytest.mark.torture if old == 15 else pytest.mark.long) for old in range(14, 18)
]
"""Pairs of major versions. Slots of captures stay from version 17 on. A test runs with the pairs whose programs are
found, which is always 16: a wheel of the tests has it."""


@pytest.mark.parametrize(("old", "new"), VERSIONS)
async def test_consumers_go_on_after_pg_upgrade(old: int, new: int) -> None:
    """Leases stay, and so do acks that no settle has folded in. Slots of captures stay from version 17 on."""
    before, after = (
        require_programs(old, "pg_controldata", "pg_resetwal"),
        require_programs(new, "pg_upgrade", "pg_dump", "psql"),
    )
    with copy_of(before) as source, copy_of(after) as target:
        source.initdb()
        source.start()
        async with opened(source.url) as database:
            await store.migrate(database)
            scene = Scene(source.url)
            await scene.set(database)
            await database.fetch("create role before login")
            await database.fetch("create role app login")
            await database.fetch("drop role before")  # so that numbers of roles differ from those of an empty server
            await store.grant(database, "publish", "app", ["orders"])
            (held,) = [batch for batch in scene.held if 5 in batch.seqs]
            await scene.end("rollback")
            # The reader of the slot has confirmed everything. Otherwise pg_upgrade refuses to begin.
            await database.fetch("select pg_create_logical_replication_slot('captured', 'pgoutput')")
        source.stop()
        target.initdb(*(["--no-data-checksums"] if new >= 18 else []), database=False)
        try:
            await anyio.to_thread.run_sync(target.upgrade_from, source)
        except AssertionError as error:
            if "compression method lz4 not supported" not in str(error):
                raise
            pytest.skip(f"SKIPPED FOR WANT OF PROGRAMS: PostgreSQL {new} with lz4, which PostgreSQL {old} has here")
        target.start()
        async with opened(target.url) as upgraded:
            assert await upgraded.fetchval("select current_setting('server_version_num')::int / 10000") == new
            assert await store.migrate(upgraded) == []
            slots = await upgraded.fetch(
                "select slot_name::text from pg_replication_slots where slot_name = 'captured'"
            )
            assert len(slots) == (1 if old >= 17 else 0)
            # An outcome of a worker that waited for the server counts.
            outcome = Settlement(leases=[held.lease_id or 0], seqs=[5], failures=[None])
            ship = scene.reader(upgraded, "ship")
            assert await store.settle(upgraded, ship.id, outcome, now=scene.clock.now, history=held.timeline) == []
            await scene.goes_on(upgraded, already=[5])
            # Roles keep their numbers, so grants count.
            assert [one.bound for one in await store.grants(upgraded)] == [True]
            async with opened(target.url.replace("headrace@", "app@")) as app:
                await store.publish(app, "orders", "a", "1")
            await store.grant(upgraded, "publish", "app", ["orders"])
            assert [(one.role, one.bound) for one in await store.grants(upgraded)] == [("app", True)]
