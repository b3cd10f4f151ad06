"""The processes of a run: workers that are replaced when the run kills them, and a publisher at a pace."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.chaos.grounds import Ground
from benchmarks.chaos.worker import CONSUMERS, EFFECTS
from benchmarks.harness import opened
from headrace import store
from headrace.store import Database
from tests.support.silence import Proxy
from tests.torture.fleet import Worker, spawn
from tests.torture.promises.faults import asked
from tests.torture.promises.nodes import Node

MODULE = "benchmarks.chaos.worker"

STARTING = 120.0
"""Seconds that the processes may take to start."""

PATIENCE = 30.0
"""Seconds without progress after which the messages that are left count as lost."""


class Plan(msgspec.Struct, frozen=True):
    """The load and the lengths of the phases.

    Attributes:
        rate: messages that are published per second.
        workers: worker processes.
        ack_wait: the visibility timeout of both consumers, in seconds. The messages of a killed worker wait for it.
        baseline, fault, recovery: seconds of the phases. A fault that does something takes as long as that takes.
    """

    rate: float = 200.0
    workers: int = 3
    ack_wait: float = 2.0
    baseline: float = 10.0
    fault: float = 6.0
    recovery: float = 12.0


class Site:
    """A running load.

    Attributes:
        ground: the server, and what the fault needs around it.
        stream: the name of the stream, which is also that of the run.
        accidents: processes that ended by themselves, each with the end of its log.
    """

    def __init__(self, ground: Ground, plan: Plan, stream: str, home: Path) -> None:
        self.ground = ground
        self.plan = plan
        self.stream = stream
        self.home = home
        self.accidents: list[str] = []
        self._crew: dict[int, Worker] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._publisher: Worker
        self._born = 0
        self._ending = False

    @property
    def workers(self) -> list[Worker]:
        """The worker processes, the oldest first."""
        able = [worker for worker in self._crew.values() if worker.process.returncode is None and not worker.killed]
        return sorted(able, key=lambda worker: worker.log.name)

    @property
    def node(self) -> Node:
        assert self.ground.node is not None
        return self.ground.node

    @property
    def proxy(self) -> Proxy:
        assert self.ground.proxy is not None
        return self.ground.proxy

    async def ask(self, query: str, *arguments: Any) -> Any:
        """Query the server until it answers."""
        return await asked(self.ground.direct, query, *arguments)

    def kill(self, worker: Worker) -> None:
        """Kill the process with SIGKILL. Another one takes its place."""
        worker.killed = True
        worker.send(signal.SIGKILL)

    def command(self, worker: Worker, line: str) -> None:
        """Send a command to a process, see `worker`."""
        assert worker.process.stdin is not None
        worker.process.stdin.write(line.encode() + b"\n")

    def pace(self, factor: float) -> None:
        """Publish so many times as much as in the baseline from now on."""
        self.command(self._publisher, f"pace {self.plan.rate * factor}")

    async def start(self) -> None:
        """Make the stream, and start all processes."""
        async with own_connections(self.ground.direct) as database:
            await store.create_stream(database, self.stream)
            await database.fetch("insert into headrace_chaos.streams values ($1)", self.stream)
        self._publisher = await self._spawn("publishers")
        self._keepers.append(asyncio.create_task(self._watch(self._publisher)))
        for place in range(self.plan.workers):
            worker = self._crew[place] = await self._spawn("handlers")
            self._keepers.append(asyncio.create_task(self._keep(place, worker)))
        processes = (*self._crew.values(), self._publisher)
        ready = asyncio.ensure_future(_all(process.said(_ready) for process in processes))
        await asyncio.wait([ready, *self._keepers], return_when=asyncio.FIRST_COMPLETED, timeout=STARTING)
        if not ready.done():
            ready.cancel()
            words = next(process.last_words() for process in processes if not _ready(process.lines))
            raise AssertionError(f"a process did not start:\n{words}")
        self.pace(1)

    async def _keep(self, place: int, worker: Worker) -> None:
        await self._watch(worker)
        while not self._ending:
            worker = self._crew[place] = await self._spawn("handlers")
            await self._watch(worker)

    async def _watch(self, worker: Worker) -> None:
        code = await worker.read()
        if not worker.killed and (code != 0 or not self._ending):
            self.accidents.append(f"{worker.log.stem} ended with {code}:\n{worker.last_words()}")
            await asyncio.sleep(1.0)

    async def _spawn(self, work: str, **options: Any) -> Worker:
        self._born += 1
        name = f"{work}-{self._born:03}"
        return await spawn(
            work, self.home / f"{name}.log", module=MODULE, url=self.ground.url, stream=self.stream,
            trace=self.home / f"{name}.trace", ack_wait=f"{self.plan.ack_wait}s", **options,
        )  # fmt: skip

    async def finish(self) -> dict[str, int]:
        """Publish no more, and wait until all is handled, or nothing is for `PATIENCE` seconds. Returns how many messages
        of each key were confirmed."""
        self.command(self._publisher, "enough")
        async with asyncio.timeout(4 * PATIENCE):
            await self._publisher.said(lambda lines: any("confirmed" in line for line in lines))
        confirmed: dict[str, int] = next(line["confirmed"] for line in self._publisher.lines if "confirmed" in line)
        async with own_connections(self.ground.direct) as database:
            left, since = await self._left(database), time.monotonic()
            while any(left) and time.monotonic() - since < PATIENCE:
                await asyncio.sleep(0.1)
                before, left = left, await self._left(database)
                if left != before:
                    since = time.monotonic()
        self._ending = True
        for worker in (*self._crew.values(), self._publisher):
            worker.finish()
        await asyncio.wait(self._keepers, timeout=PATIENCE)
        return confirmed

    async def _left(self, database: Database) -> list[int]:
        infos = [await store.consumer(database, self.stream, name) for name in CONSUMERS]
        return [info.lag + info.in_flight + info.parked for info in infos]

    async def close(self) -> None:
        """End what still runs."""
        self._ending = True
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for worker in (*self._crew.values(), *([self._publisher] if hasattr(self, "_publisher") else [])):
            if worker.process.returncode is None:
                worker.send(signal.SIGKILL)
                await worker.process.wait()


@asynccontextmanager
async def site(ground: Ground, plan: Plan, stream: str, home: Path) -> AsyncIterator[Site]:
    """A site at work, ended at the end."""
    async with own_connections(ground.direct) as database:
        await store.migrate(database)
        async with database.transaction() as connection:
            await connection.execute(EFFECTS)
    running = Site(ground, plan, stream, home)
    try:
        await running.start()
        yield running
    finally:
        await running.close()


def own_connections(url: str) -> AbstractAsyncContextManager[Database]:
    """Connections of the run's own, for few queries."""
    return opened(url, 2, "chaos")


async def _all(waiting: Iterable[Awaitable[None]]) -> None:
    await asyncio.gather(*waiting)


def _ready(lines: list[dict[str, Any]]) -> bool:
    return {"ready": True} in lines
