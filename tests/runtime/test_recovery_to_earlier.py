"""Point-in-time recovery under running workers: the server returns to an earlier moment at the same address."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from headrace import App, Message, store
from tests.runtime.running import Gate, Seen, eventually, running
from tests.support.recovery import Archived, archived

pytestmark = pytest.mark.asyncio


async def in_flight(app: App) -> int:
    found: int = await app.database.fetchval("select coalesce(sum(held), 0) from headrace_internal.leases")
    return found


async def prepare(server: Archived) -> None:
    """Migrate, and take the backup from which the recovery begins."""
    database = store.Database(server.server.url())
    await database.open()
    await store.migrate(database)
    await anyio.to_thread.run_sync(server.back_up)
    await database.close()


@pytest.mark.process
async def test_the_order_of_a_key_holds_for_a_worker_that_survives_a_recovery(tmp_path: Path) -> None:
    """The recovery undoes the ack of `a` 1 and restores its lease. The worker has forgotten both,
    and none of its calls failed."""
    with archived(tmp_path / "postgres") as server:
        await prepare(server)
        app, seen, gates = App(server.server.url()), Seen(), {"before": Gate(), "during": Gate()}

        @app.consumer("orders", max_ack_pending=2, concurrency=2, ack_wait="60s")
        async def ship(message: Message) -> None:
            if gate := gates.get(message.data["wait"]):
                await gate.wait()
            seen.note((message.key, message.data["n"]))

        async def nothing_in_flight() -> bool:
            return not await in_flight(app)

        async with running(app):
            await app.publish("orders", "a", {"n": 1, "wait": "before"})
            await gates["before"].until(1)
            await app.database.fetchval("select pg_create_restore_point('before the ack')")
            gates["before"].open()
            await eventually(nothing_in_flight)
            # The handlers of these leave no room for more, so nothing is leased during the
            # recovery.
            await app.publish_many("orders", [(key, {"n": 1, "wait": "during"}) for key in "xy"])
            await gates["during"].until(2)
            await anyio.to_thread.run_sync(server.recover, "before the ack")
            assert await in_flight(app) == 1, "the lease is not there again: this test has no point"
            await app.publish("orders", "a", {"n": 2, "wait": ""})
            gates["during"].open()
            await app.idle()
        assert [n for key, n in seen.notes if key == "a"] == [1, 1, 2]


async def test_a_worker_leases_nothing_from_another_consumer_that_got_its_number(dsn: str) -> None:
    """The consumer was created after the recovery point. Before the worker leased again, another
    consumer was created with the same number."""
    app, seen, gate = App(dsn), Seen(), Gate()

    @app.consumer("orders", max_ack_pending=1)
    async def ship(message: Message) -> None:
        seen.note(message.key)
        await gate.wait()

    async def gone() -> bool:
        return bool(app.statistics()["consumers"]["orders:ship"]["deleted"])

    async with running(app):
        await app.publish("orders", "ours", 1)
        await gate.until(1)
        await app.database.fetchval("update headrace_internal.consumers set name = 'other'")
        await app.publish("orders", "theirs", 1)
        await eventually(gone)
        gate.open()
    assert seen.notes == ["ours"]
