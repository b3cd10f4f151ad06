"""Networks that lose packets without an error: a cable that is pulled out, and an address that moved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import App, store
from headrace.store.connections import keepalive
from tests.runtime.running import Seen, running
from tests.support import namespaces
from tests.support.namespaces import Network, Server
from tests.support.silent_work import in_order, publish

SOON = 20.0
"""The time limit in seconds for everything to continue. It takes two to five. TCP alone would take 15 minutes."""


@pytest.fixture
def there() -> Iterator[Network]:
    with namespaces.network() as network:
        yield network


@pytest.fixture
def far_server(tmp_path: Path, there: Network) -> Iterator[Server]:
    with namespaces.reachable(tmp_path / "pg", there) as server:
        yield server


@pytest.mark.process
@pytest.mark.long
def test_handlers_go_on_within_seconds_after_an_address_moved_and_after_a_cable_was_out(
    there: Network, far_server: Server
) -> None:
    async def work() -> None:
        direct = store.Database(far_server.direct)
        await direct.open()
        await store.migrate(direct)
        app, seen = App(far_server.url), Seen()

        @app.consumer("orders")
        async def ship(order: int) -> None:
            seen.note(order)

        async with running(app):
            await all_of(seen, 0, direct)
            there.move()
            await all_of(seen, 100, direct)
            there.cut()
            await publish(direct, range(200, 300))
            async with asyncio.timeout(SOON):
                while app.database._connector.detector._silent_since is None:
                    await direct.fetch("select pg_sleep(0.05)")
            there.heal()
            await all_of(seen, 300, direct)
            assert in_order(seen.notes)
            async with asyncio.timeout(SOON):
                while app.database.statistics()["died"] < 2:  # the next heartbeat finds the dead listening connection
                    await direct.fetch("select pg_sleep(0.05)")
        await direct.close()

    async def all_of(seen: Seen, first: int, direct: store.Database) -> None:
        await publish(direct, range(first, first + 100))
        async with asyncio.timeout(SOON):
            while set(seen.notes) != set(range(first + 100)):
                await seen.until(len(seen.notes) + 1)

    there.run(work)


@pytest.mark.process
@pytest.mark.long
def test_a_lock_of_a_client_that_vanished_is_free_within_seconds(
    there: Network, far_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(keepalive.SERVER_SETTINGS, "tcp_user_timeout", "3000")  # 10 s would prove the same

    async def work() -> None:
        direct, far = store.Database(far_server.direct), store.Database(far_server.url)
        await direct.open()
        await far.open()
        hold = await far.begin(1000)
        await hold.connection.fetchval("select pg_advisory_xact_lock(7)")
        there.cut()
        async with asyncio.timeout(SOON):
            await direct.fetchval("select pg_advisory_lock(7)")
        await far.close()
        await direct.close()

    there.run(work)
