"""The faults of the scenarios. A fault returns when it is over, and the recovery is measured from then on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.chaos.grounds import Skipped
from benchmarks.chaos.site import Site

Fault = Callable[[Site, float], Awaitable[None]]
"""Takes the site, and the seconds that the fault lasts."""

OTHERS = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid() and usename = current_user
"""

PACE = 2.5
"""Seconds that 64 KiB take in a slow network: 20 ms for a packet of 500 bytes."""

HOUR = 3600

MOST_SLOTS = 500
"""The largest `max_connections` of which all are taken."""


async def restart(site: Site, seconds: float) -> None:
    """Stop the server in good order, and start it."""
    await asyncio.to_thread(site.node.stop, "fast")
    await asyncio.to_thread(site.node.start)


async def crash(site: Site, seconds: float) -> None:
    """Crash the server, and start it."""
    await asyncio.to_thread(site.node.crash)


async def crashes(site: Site, seconds: float) -> None:
    """Crash the server three times in a row."""
    for _ in range(3):
        await asyncio.to_thread(site.node.crash)
        await asyncio.sleep(seconds / 6)


async def backends(site: Site, seconds: float) -> None:
    """Terminate all connections four times a second."""
    for _ in range(int(seconds * 4)):
        await site.ask(OTHERS)
        await asyncio.sleep(0.25)


async def pool(site: Site, seconds: float) -> None:
    """Transactions of the application take all connections of each process."""
    for worker in site.workers:
        site.command(worker, f"hold {seconds}")
    await asyncio.sleep(seconds)


async def slots(site: Site, seconds: float) -> None:
    """Another program takes every connection that the server has, after all others were terminated."""
    if int(await site.ask("show max_connections")) > MOST_SLOTS:
        raise Skipped(f"the server has more than {MOST_SLOTS} connections")
    taken: list[Any] = []
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    try:
        while clock() < end:
            try:
                taken.append(await asyncpg.connect(site.ground.direct, timeout=5))
            except (asyncpg.PostgresError, OSError):
                if not taken:
                    raise
                await taken[0].execute(f"{OTHERS} and not pid = any ($1)", [one.get_server_pid() for one in taken])
                await asyncio.sleep(0.05)
    finally:
        for connection in taken:
            connection.terminate()


@asynccontextmanager
async def _transaction(site: Site, begin: str = "begin") -> AsyncIterator[Any]:
    connection = await asyncpg.connect(site.ground.direct, timeout=5)
    try:
        await connection.execute(begin)
        yield connection
        await connection.execute("rollback")
    finally:
        connection.terminate()


async def idle_transaction(site: Site, seconds: float) -> None:
    """A session publishes, and leaves its transaction open."""
    async with _transaction(site) as connection:
        await connection.execute("select headrace.publish($1, 'idle', '{}')", site.stream)
        await asyncio.sleep(seconds)


async def locks(site: Site, seconds: float) -> None:
    """A session holds a lock on the stream's table, so that nothing can be published, and leaves it open."""
    async with _transaction(site) as connection:
        await connection.execute(f'lock table headrace_streams."{site.stream}" in share row exclusive mode')
        await asyncio.sleep(seconds)


async def snapshots(site: Site, seconds: float) -> None:
    """Readers hold old snapshots, beside which nothing can be vacuumed."""
    async with AsyncExitStack() as readers:
        for _ in range(5):
            reader = await readers.enter_async_context(_transaction(site, "begin isolation level repeatable read"))
            await reader.execute("select 1")
        await asyncio.sleep(seconds)


async def bursts(site: Site, seconds: float) -> None:
    """Ten times the load, twice."""
    for factor in (10, 1, 10):
        site.pace(factor)
        await asyncio.sleep(seconds / 3)
    site.pace(1)


async def failover(site: Site, seconds: float) -> None:
    """The primary is lost, and its synchronous standby is promoted."""
    standby = site.ground.standby
    assert standby is not None
    await asyncio.to_thread(site.node.stop, "immediate")
    await asyncio.to_thread(standby.promote)
    site.ground.direct = standby.url


async def disk(site: Site, seconds: float) -> None:
    """The disk of the tables is full for a while."""
    assert site.ground.disk is not None
    site.ground.disk.fill()
    await asyncio.sleep(seconds)
    site.ground.disk.make_room()


async def clock(site: Site, seconds: float) -> None:
    """All clocks jump an hour ahead, then two hours back, then to the right time."""
    assert site.ground.clock is not None
    for ahead in (HOUR, -HOUR):
        site.ground.clock.set_ahead(ahead)
        await asyncio.sleep(seconds / 2)
    site.ground.clock.set_ahead(0)


async def network_cut(site: Site, seconds: float) -> None:
    """Connections are reset, and new ones refused."""
    site.proxy.refuse()
    await asyncio.sleep(seconds)
    await site.proxy.listen()


async def network_slow(site: Site, seconds: float) -> None:
    """Each packet takes 20 ms or more."""
    site.proxy.slow(PACE)
    await asyncio.sleep(seconds)
    site.proxy.slow(0.0)


async def network_silent(site: Site, seconds: float) -> None:
    """Nothing passes, and nothing is reset. Afterwards new connections work, and old ones stay dead."""
    site.proxy.cut()
    await asyncio.sleep(seconds)
    site.proxy.heal()


async def frozen(site: Site, seconds: float) -> None:
    """A worker process is frozen for longer than its leases, and wakes up."""
    worker = site.workers[0]
    worker.send(signal.SIGSTOP)
    await asyncio.sleep(max(seconds, 2 * site.plan.ack_wait))
    worker.send(signal.SIGCONT)


async def killed(site: Site, seconds: float) -> None:
    """All worker processes but one are killed at the same time, and replaced."""
    for worker in site.workers[1:] or site.workers:
        site.kill(worker)


async def pooler(site: Site, seconds: float) -> None:
    """The pooler is killed and started three times."""
    assert site.ground.pooler is not None
    for _ in range(3):
        site.ground.pooler.kill()
        await asyncio.sleep(seconds / 6)
        site.ground.pooler.start()
        await site.ground.pooler.ready()
        await asyncio.sleep(seconds / 6)
