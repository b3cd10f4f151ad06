"""Two HTTP servers on one database, and clients that connect and disconnect, while servers are killed and restarted."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from headrace import store
from headrace.model.specs import ConsumerSpec
from tests.torture.http_clients import Clients
from tests.torture.http_ledger import HttpLedger
from tests.torture.http_servers import ServerProcess

CLIENTS = 50
PUBLISHERS = 4
SLACK = 5.0
"""Seconds that a redelivery may take beyond the visibility timeout, with a margin for a busy machine."""

PATIENCE = 60.0
"""Seconds that clients may take for the remaining messages after the last publish."""


@pytest.mark.asyncio
@pytest.mark.long
async def test_nothing_is_lost_and_order_holds_while_clients_leave_and_a_server_is_killed(
    database: store.Database, tmp_path: Path
) -> None:
    await run(database, tmp_path, keys=400, each=6, seconds=6, kills=1)


@pytest.mark.torture
@pytest.mark.asyncio
@pytest.mark.parametrize("attempt", range(3))
async def test_nothing_is_lost_and_order_holds_through_minutes_of_it(
    database: store.Database, tmp_path: Path, attempt: int
) -> None:
    await run(database, tmp_path, keys=2_000, each=20, seconds=90, kills=12)


async def run(database: store.Database, logs: Path, *, keys: int, each: int, seconds: float, kills: int) -> None:
    """Publish so many messages of each key over so many seconds, have all of them received, and judge."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    print(f"seed {seed}, servers' logs in {logs}")
    await store.create_stream(database, "orders")
    spec = ConsumerSpec(
        stream="orders", name="all", ack_wait=1.0, max_deliver=-1, max_waiting=100, max_ack_pending=5_000
    )
    await store.declare_consumer(database, spec)
    ledger = HttpLedger(spec.ack_wait, SLACK)
    servers = [ServerProcess(database.dsn, logs / f"server-{number}.log") for number in range(2)]
    try:
        for server in servers:
            await asyncio.to_thread(server.start)
        clients = Clients(servers, ledger, "orders", "all", chance)
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(clients.receive())
            killing = group.create_task(kill(servers, chance, seconds, kills))
            names = [f"orders.{number}" for number in range(keys)]
            await asyncio.gather(
                *(
                    clients.publish(names[n::PUBLISHERS], each, seconds * PUBLISHERS / (keys * each))
                    for n in range(PUBLISHERS)
                )
            )
            await killing
            await settled(database)
            clients.finished.set()
        ledger.judge()
        print(dict(clients.did), f"{ledger.again()} came again, at most {ledger.slowest:.2f} s after their timeout")
        assert clients.did["servers gone"]
        assert len(ledger.published) == keys * each
        stored = await database.fetchval("select count(*) from headrace_streams.orders")
        assert stored == keys * each, "what was sent again after no answer came was not stored again"
        info = await store.consumer(database, "orders", "all")
        assert (info.num_pending, info.num_ack_pending, info.parked, info.dead_letters) == (0, 0, 0, 0)
    finally:
        codes = [await asyncio.to_thread(server.stop) for server in servers]
    assert codes == [0, 0], [server.last_words() for server in servers]


async def kill(servers: list[ServerProcess], chance: random.Random, seconds: float, kills: int) -> None:
    """Kill one of the servers with SIGKILL now and then. It is restarted after a moment."""
    for _ in range(kills):
        await asyncio.sleep(seconds / (kills + 1) * chance.uniform(0.6, 1.0))
        server = chance.choice(servers)
        server.kill()
        await asyncio.sleep(chance.uniform(0, 0.5))
        await asyncio.to_thread(server.start)


async def settled(database: store.Database) -> None:
    """Wait until everything is acked."""
    async with asyncio.timeout(PATIENCE):
        while True:
            info = await store.consumer(database, "orders", "all")
            if not (info.lag or info.num_ack_pending or info.parked):
                return
            await asyncio.sleep(0.1)
