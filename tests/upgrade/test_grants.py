"""Roles with grants, and processes that run as such roles, go through an upgrade."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import anyio
import asyncpg
import pytest
import pytest_asyncio

from headrace import App, store
from headrace.model.specs import ConsumerSpec
from tests.support.roles import as_role
from tests.support.servers import opened
from tests.upgrade.synthetic import next_revision
from tests.upgrade.test_releases import CURRENT, migrate

pytestmark = [pytest.mark.asyncio, pytest.mark.process]

WITHIN = 60.0

# A process of the next release: it publishes, handles what comes, and ends with its heartbeat removed.
NEW_PROCESS = """
import asyncio, sys
from headrace import App

app, got = App(sys.argv[1]), asyncio.Event()

@app.consumer("orders", name="ship")
async def ship(number: int) -> None:
    if number == 3:
        got.set()

async def main():
    async with app.running():
        await app.publish("orders", "a", 3)
        await asyncio.wait_for(got.wait(), 50)
        assert app.database.granted

asyncio.run(main())
"""


@pytest_asyncio.fixture
async def role(dsn: str) -> AsyncIterator[str]:
    """A role that may run the consumer `ship`, and publish to its stream."""
    name = f"app_{uuid4().hex[:12]}"
    async with opened(dsn) as database:
        await store.create_stream(database, "orders")
        await store.create_stream(database, "secrets")
        await store.declare_consumer(database, ConsumerSpec(stream="orders", name="ship"))
        await database.fetch(f"create role {name} login password 'secret'")
        for privilege in ("publish", "consume"):
            await store.grant(database, privilege, name, ["orders"])
    yield name
    async with opened(dsn) as database:
        await database.fetch(f"drop owned by {name}")
        await database.fetch(f"drop role {name}")


async def test_an_old_worker_with_a_grant_works_on_beside_new_ones(dsn: str, role: str, tmp_path: Path) -> None:
    """Also where a function that it calls has a new name since."""
    later = next_revision(CURRENT, tmp_path, renames=True)
    app, seen = App(as_role(dsn, role)), []
    arrived = [anyio.Event() for _ in range(4)]

    @app.consumer("orders", name="ship")
    async def ship(number: int) -> None:
        seen.append(number)
        arrived[number].set()

    with anyio.fail_after(WITHIN):
        async with opened(dsn) as owner:
            async with app.running():
                await app.publish("orders", "a", 1)
                await arrived[1].wait()
                done = await anyio.to_thread.run_sync(migrate, later, dsn)
                assert done.returncode == 0, done.stderr
                assert await store.schema_version(owner) == store.newest_revision() + 1
                await app.publish("orders", "a", 2)
                await arrived[2].wait()
                with pytest.raises(Exception, match="headrace grant publish"):
                    await app.publish("secrets", "a", 1)
            assert await owner.fetchval("select count(*) from headrace_internal.workers") == 0
            async with app.running():  # an old process that starts on the newer schema
                await app.idle()
            done = await anyio.to_thread.run_sync(
                lambda: subprocess.run(
                    [sys.executable, "-c", NEW_PROCESS, as_role(dsn, role)],
                    env={**os.environ, "PYTHONPATH": str(later)}, capture_output=True, text=True, timeout=60, check=False,
                )
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert "heartbeat" not in done.stderr
            assert await owner.fetchval("select count(*) from headrace_internal.workers") == 0
            assert {(one.role, one.privilege) for one in await store.grants(owner)} == {
                (role, "publish"), (role, "consume"),
            }  # fmt: skip
    assert seen == [1, 2]


async def test_a_role_that_may_not_upgrade_says_which_command_and_role_do(dsn: str, role: str, tmp_path: Path) -> None:
    later = next_revision(CURRENT, tmp_path)
    done = await anyio.to_thread.run_sync(migrate, later, as_role(dsn, role))
    assert done.returncode == 78
    assert f"The role '{role}' may not change it. Run the command as a member of the owner" in done.stderr
    assert "headrace migrate --database URL" in done.stderr
    check = await anyio.to_thread.run_sync(migrate, later, as_role(dsn, role), "--check")
    assert check.returncode == 1, check.stderr


async def test_rights_that_were_given_by_hand_survive_the_upgrade(empty_dsn: str, tmp_path: Path) -> None:
    """Those of a publisher and reader without a grant."""
    later, name = next_revision(CURRENT, tmp_path), f"app_{uuid4().hex[:12]}"
    assert migrate(CURRENT, empty_dsn).returncode == 0
    owner = await asyncpg.connect(empty_dsn)
    await owner.execute("select headrace.create_stream('orders')")
    await owner.execute(f"create role {name} login password 'secret'")
    try:
        await owner.execute(f"grant usage on schema headrace, headrace_internal, headrace_streams to {name}")
        await owner.execute(f"grant execute on all functions in schema headrace to {name}")
        await owner.execute(
            f"grant select, insert, update, delete on all tables in schema headrace_internal, headrace_streams to {name}"
        )
        await owner.execute(f"grant usage on all sequences in schema headrace_streams to {name}")
        await owner.execute(f"grant select on headrace.dead_letters, headrace.parked, headrace.in_flight to {name}")
        app = await asyncpg.connect(as_role(empty_dsn, name))
        try:
            assert await app.fetchval("select headrace.publish('orders', 'a', '1')") == 1
            done = await anyio.to_thread.run_sync(migrate, later, empty_dsn)
            assert done.returncode == 0, done.stderr
            assert await app.fetchval("select headrace.publish('orders', 'a', '1')") == 2
            assert await app.fetchval("select headrace.publish_many('orders', '{a}', array['1']::json[])") == 1
            for view in ("dead_letters", "parked", "in_flight"):
                assert await app.fetch(f"select * from headrace.{view}") == []
        finally:
            await app.close()
    finally:
        await owner.execute(f"drop owned by {name}; drop role {name}")
        await owner.close()
