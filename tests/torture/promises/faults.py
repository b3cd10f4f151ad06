"""The faults, and what each does to the site. Every fault returns when it is over, and recovery is
measured from then on.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    from tests.torture.promises.site import Site

_SOME = """
select pg_terminate_backend(pid) from (
    select pid from pg_stat_activity
    where datname = 'headrace' and backend_type = 'client backend' and pid <> pg_backend_pid()
    order by random() * case state when 'active' then 0.1 else 1 end limit $1) as victims
"""

_ONE = """select pid from pg_stat_activity where datname = 'headrace' and backend_type = 'client backend' and pid <> pg_backend_pid()
          order by random() * case state when 'active' then 0.1 else 1 end limit 1"""

Fault = Callable[["Site", random.Random], Awaitable[None]]


async def worker_killed(site: Site, chance: random.Random) -> None:
    """Kill a worker with SIGKILL at a random moment."""
    site.kill(chance.choice(site.workers))


async def worker_killed_at_a_settle(site: Site, chance: random.Random) -> None:
    """A worker kills itself right before it sends a settle, or right after the answer. Acks of other
    leases then remain in the database.
    """
    worker = chance.choice(site.workers)
    worker.killed = True
    assert worker.process.stdin is not None
    worker.process.stdin.write(f"die {chance.choice(['before', 'after'])} {chance.randint(1, 12)}\n".encode())
    with suppress(TimeoutError):
        async with asyncio.timeout(10):
            await worker.process.wait()
    site.kill(worker)


async def service_killed(site: Site, chance: random.Random) -> None:
    """Kill a service with SIGKILL during its transactions."""
    site.kill(site.service)


async def worker_frozen(site: Site, chance: random.Random) -> None:
    """Send a worker SIGSTOP, and SIGCONT when its leases have expired."""
    worker = chance.choice(site.workers)
    worker.send(signal.SIGSTOP)
    await asyncio.sleep(site.load.ack_wait * chance.uniform(1.2, 1.8))
    worker.send(signal.SIGCONT)


async def backends_terminated(site: Site, chance: random.Random) -> None:
    await site.ask(_SOME, chance.randint(1, 10))


async def backend_killed(site: Site, chance: random.Random) -> None:
    """Kill a backend with SIGKILL. The server ends all others and recovers in place."""
    pid = await site.ask(_ONE)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(0.05)
    await site.ask("select 1")


async def server_crashed(site: Site, chance: random.Random) -> None:
    await asyncio.to_thread(site.pair.primary.crash)


async def http_server_killed(site: Site, chance: random.Random) -> None:
    """Kill an HTTP server with SIGKILL while the others are up. It is restarted immediately."""
    await site.servers_up()
    server = chance.choice(site.servers)
    await asyncio.to_thread(server.kill)
    server.begin()


async def silence_that_heals(site: Site, chance: random.Random) -> None:
    """Nothing passes for a while. Then everything continues, including what was held back."""
    proxies = chance.choice([site.routes.proxies, site.routes.proxies[:1], site.routes.proxies[1:]])
    for proxy in proxies:
        proxy.cut()
    await asyncio.sleep(chance.uniform(0.5, 3.0))
    for proxy in proxies:
        proxy.heal(resume=True)


async def silence_that_stays(site: Site, chance: random.Random) -> None:
    """Simulate an address that has moved. Open connections are silent forever, and new connections work."""
    for proxy in chance.choice([site.routes.proxies, site.routes.proxies[:1], site.routes.proxies[1:]]):
        proxy.forget()


async def silence_that_is_reset(site: Site, chance: random.Random) -> None:
    """Nothing passes for a while, not even new connections. Then all connections are reset."""
    for proxy in site.routes.proxies:
        proxy.cut()
    await asyncio.sleep(chance.uniform(0.5, 3.0))
    for proxy in site.routes.proxies:
        proxy.refuse()
        proxy.heal()
        await proxy.listen()


async def failed_over(site: Site, chance: random.Random) -> None:
    """The primary dies while its standby is up to a second behind, and the standby replaces it on every route at
    once.

    Sometimes the service is frozen during its commits meanwhile. When it then asks for the outcome of
    its transactions, other transactions have their ids.
    """
    frozen = site.service if chance.random() < 0.5 else None
    await site.fail_over(lag=chance.random(), silently=chance.random() < 0.3, frozen=frozen)
    if frozen is not None:
        await asyncio.sleep(chance.uniform(0.5, 1.5))
        frozen.send(signal.SIGCONT)


FAULTS: dict[Fault, int] = {
    worker_killed: 3,
    worker_killed_at_a_settle: 6,
    service_killed: 2,
    worker_frozen: 3,
    backends_terminated: 3,
    backend_killed: 2,
    server_crashed: 2,
    http_server_killed: 2,
    silence_that_heals: 2,
    silence_that_stays: 2,
    silence_that_is_reset: 1,
    failed_over: 4,
}
"""The faults, each with its number in one round."""


def drawn(chance: random.Random, count: int) -> list[Fault]:
    """Yield so many faults, in rounds of all kinds, each round in a random order."""
    one_of_each, rest = list(FAULTS), [fault for fault, times in FAULTS.items() for _ in range(times)]
    drawn: list[Fault] = chance.sample(one_of_each, len(one_of_each))
    while len(drawn) < count:
        drawn += chance.sample(rest, len(rest))
    return drawn[:count]


class Happened:
    """A fault that happened.

    Attributes:
        began, ended: Times of the machine's clock.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.began = time.time()
        self.ended = self.began

    @classmethod
    async def of(cls, fault: Fault, site: Any, chance: random.Random) -> Happened:
        happened = cls(fault.__name__)
        await fault(site, chance)
        happened.ended = time.time()
        return happened


async def asked(url: str, query: str, *args: Any) -> Any:
    """Query a server that may be recovering, until it answers."""
    async with asyncio.timeout(30):
        while True:
            try:
                connection = await asyncpg.connect(url, timeout=5)
                try:
                    return await connection.fetchval(query, *args, timeout=10)
                finally:
                    await connection.close(timeout=5)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                await asyncio.sleep(0.02)
