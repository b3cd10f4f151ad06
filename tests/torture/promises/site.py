"""Everything that runs in a torture run: two servers, their routes, workers, services, publishers, HTTP
servers and their clients.
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace import store
from headrace.model.specs import ConsumerSpec
from tests.torture.fleet import Line, Worker, spawn
from tests.torture.http_servers import ServerProcess
from tests.torture.promises import history
from tests.torture.promises.faults import asked
from tests.torture.promises.nodes import Failover, Node, Pair
from tests.torture.promises.routes import Routes

MODULE = "tests.torture.promises.crew"

CATCHING_UP = 20.0
"""Seconds that a standby may take to catch up with its primary."""

STARTING = 60.0
"""Seconds that an HTTP server may take to start."""

TRIES = 10
"""How often making a standby is attempted before giving up."""

_CAUGHT_UP = """select count(*) = 1 from pg_stat_replication
                where application_name = 'standby' and pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn) < 1000000"""


@dataclass
class Load:
    """The amount of load.

    Attributes:
        messages: Minimum number of messages that the publishers publish. Messages of services are
            additional.
        rate: Messages that the publishers publish per second.
        pace: Mean seconds that a handler takes.
        services: Messages that services publish per second.
        ack_wait: The visibility timeout of all consumers in seconds.
    """

    messages: int
    rate: float
    workers: int = 3
    servers: int = 2
    clients: int = 8
    pace: float = 0.002
    services: float = 40.0
    ack_wait: float = 2.0


@dataclass
class Life:
    """The period in which a worker ran."""

    ready_at: float = float("inf")
    died_at: float = float("inf")


class Site:
    """Everything that runs. It is started and cleaned up as an asynchronous context manager.

    Attributes:
        failovers: The failovers so far.
        lives: The periods of the workers, by name.
    """

    def __init__(self, home: Path, load: Load, seed: int) -> None:
        self.home = home
        self.load = load
        self.pair = Pair()
        self.routes: Routes
        self.failovers: list[Failover] = []
        self.lives: dict[str, Life] = {}
        self.servers: list[ServerProcess] = []
        self._seed = seed
        self._born = 0
        self._crew: dict[str, Worker] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._copying: asyncio.Task[None] | None = None
        self._ending = False

    async def __aenter__(self) -> Site:
        await asyncio.to_thread(self.pair.make)
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()

    async def _open(self) -> None:
        await self._prepare()
        self.routes = Routes(self.pair.either(), self.pair.primary)
        await self.routes.start()
        ways = [self.routes.pooled, self.routes.proxied]
        self.servers = [
            ServerProcess(ways[number % 2], self.home / f"server-{number}.log") for number in range(self.load.servers)
        ]
        for server in self.servers:
            server.begin()
        places = [f"worker-{number}" for number in range(self.load.workers)] + ["service"]
        await asyncio.gather(*(self._hire(place) for place in places))
        await self.servers_up()
        await self._hire("clients")
        await self._hire("publishers")

    async def _prepare(self) -> None:
        database = store.Database(self.pair.primary.url)
        await database.open()
        await store.migrate(database)
        for stream in (history.STREAM, history.RECEIPTS):
            await store.create_stream(database, stream)
        spec = ConsumerSpec(
            stream=history.STREAM, name="http", filters=("http.>",), ack_wait=self.load.ack_wait, max_deliver=-1, max_ack_pending=3000
        )  # fmt: skip
        await store.declare_consumer(database, spec)
        async with database.transaction() as connection:
            await history.record(connection)
        await database.close()

    async def close(self) -> None:
        tasks = [*self._keepers.values(), *([self._copying] if self._copying else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self._crew.values():
            worker.send(signal.SIGKILL)
            await worker.process.wait()
        for server in self.servers:
            if server.lives:
                await asyncio.to_thread(server.kill)
        if hasattr(self, "routes"):
            await self.routes.stop()
        await asyncio.to_thread(self.pair.destroy)

    # --- processes

    async def _hire(self, place: str) -> None:
        worker = await self._spawn(place)
        self._keepers[place] = asyncio.create_task(self._keep(place, worker))
        await self.alive(worker.said(_ready))

    async def _spawn(self, place: str) -> Worker:
        name = f"{place}-{self._born}"
        self._born += 1
        routes = self.routes
        work, options = place, dict[str, Any]()
        if place.startswith("worker"):
            number = int(place.partition("-")[2])
            work = "handlers"
            options = {"dsn": (routes.pooled, routes.proxied, routes.direct)[number % 3], "effects": routes.direct,
                       "ack_wait": f"{self.load.ack_wait}s", "pace": self.load.pace}  # fmt: skip
            self.lives[name] = Life()
        elif place == "service":
            options = {"dsn": routes.all[self._born % 3], "rate": self.load.services}
        elif place == "publishers":
            options = {"dsn": routes.direct, "rate": self.load.rate, "count": self.load.messages}
        elif place == "clients":
            options = {"ports": ",".join(str(s.port) for s in self.servers), "clients": self.load.clients}
        worker = self._crew[place] = await spawn(
            work, self.home / f"{name}.log", module=MODULE, seed=self._seed + self._born, name=name,
            notes=self.home / f"{name}.notes", **options,
        )  # fmt: skip
        return worker

    async def _keep(self, place: str, worker: Worker) -> None:
        """Restart the process whenever the run has killed it. A process that ends otherwise fails the run."""
        while True:
            life = self.lives.get(worker.log.stem, Life())
            watching = asyncio.create_task(self._note_ready(worker, life))
            code = await worker.read()
            watching.cancel()
            life.died_at = time.time()
            if code == 0 and self._ending:
                return
            if not worker.killed:
                raise AssertionError(f"{place} ended by itself with {code}; its last words:\n{worker.last_words()}")
            worker = await self._spawn(place)
            if self._ending:
                worker.finish()

    @staticmethod
    async def _note_ready(worker: Worker, life: Life) -> None:
        await worker.said(_ready)
        life.ready_at = time.time()

    async def alive(self, waiting: Any) -> Any:
        """Wait for the awaitable. Raises `AssertionError` as soon as a process has ended unexpectedly."""
        task = asyncio.ensure_future(waiting)
        await asyncio.wait([task, *self._keepers.values()], return_when=asyncio.FIRST_COMPLETED)
        for keeper in self._keepers.values():
            if keeper.done() and not self._ending:
                task.cancel()
                keeper.result()
        return await task

    def supervise(self) -> None:
        """Restart HTTP servers that were started while the database was away."""
        for server in self.servers:
            server.supervise()

    async def servers_up(self) -> None:
        """Wait until all HTTP servers accept connections."""
        async with asyncio.timeout(STARTING):
            while not all(server.accepts() for server in self.servers):
                await asyncio.sleep(0.05)
                self.supervise()

    @property
    def workers(self) -> list[Worker]:
        """The workers that run or are about to run."""
        able = [w for place, w in self._crew.items() if place.startswith("worker") and _able(w)]
        return [w for w in able if _ready(w.lines)] or able

    @property
    def service(self) -> Worker:
        return self._crew["service"]

    @staticmethod
    def kill(worker: Worker) -> None:
        worker.killed = True
        worker.send(signal.SIGKILL)

    async def published(self) -> None:
        """Wait until the publishers have published the requested number. They continue."""
        await self._crew["publishers"].said(lambda lines: {"reached": True} in lines)

    async def finish(self, patience: float) -> None:
        """Stop publishing, finish all messages, and end all processes. Raises `AssertionError` if the
        remaining work doesn't change for `patience` seconds.
        """
        publishers = self._crew["publishers"]
        assert publishers.process.stdin is not None
        publishers.process.stdin.write(b"enough\n")
        await self.alive(publishers.said(lambda lines: {"quiet": True} in lines))
        self._ending = True
        await self._end("service", "publishers")
        left, since = await self.left(), time.monotonic()
        while left:
            assert time.monotonic() < since + patience, f"for {patience:g} s there has been left: {left}"
            await asyncio.sleep(0.2)
            self.supervise()
            before, left = left, await self.left()
            if left != before:
                since = time.monotonic()
        await self._end(*self._crew)
        for server in self.servers:
            await asyncio.to_thread(server.stop)
        if self._copying is not None:
            await self._copying

    async def _end(self, *places: str) -> None:
        for place in places:
            if _able(self._crew[place]) and not self._crew[place].killed:
                self._crew[place].finish()
        _, late = await asyncio.wait([self._keepers[place] for place in places], timeout=60)
        assert not late, "\n".join(self._crew[place].last_words() for place in places)
        for place in places:
            self._keepers[place].result()

    async def left(self) -> dict[str, str]:
        """Return the remaining work of the consumers."""
        database = store.Database(self.pair.primary.url, max_connections=1)
        await database.open()
        try:
            infos = {kind: await store.consumer(database, history.STREAM, kind) for kind in history.KINDS}
        finally:
            await database.close()
        return {
            kind: f"lag {info.lag}, in flight {info.in_flight}, parked {info.parked}"
            for kind, info in infos.items()
            if info.lag or info.in_flight or info.parked
        }

    async def ask(self, query: str, *args: Any) -> Any:
        """Query the primary until it answers."""
        return await asked(self.pair.primary.url, query, *args)

    # --- failover

    async def fail_over(self, *, lag: float, silently: bool, frozen: Worker | None = None) -> None:
        """Stop the primary `lag` seconds after the standby stopped receiving its WAL, and promote the standby.

        A `frozen` process is stopped just before. The caller must continue it.
        """
        if self._copying is not None:
            await self._copying
        async with asyncio.timeout(CATCHING_UP):
            while not await self.ask(_CAUGHT_UP):  # noqa: ASYNC110 - it is the database that is asked
                await asyncio.sleep(0.1)
        old, new = self.pair.primary, self.pair.standby
        cut_at = time.time()
        await asyncio.to_thread(new.cut_off)
        await asyncio.sleep(lag)
        if frozen is not None:
            frozen.send(signal.SIGSTOP)
        await asyncio.to_thread(old.stop, "immediate")
        stopped_at = time.time()
        await asyncio.to_thread(new.promote)
        promoted_at = time.time()
        kept_until = await asked(new.url, "select extract(epoch from pg_last_xact_replay_timestamp())::float8")
        self.failovers.append(Failover(cut_at, stopped_at, kept_until, promoted_at))
        self.pair.swap()
        await self.routes.lead_to(new, silently=silently)
        self._copying = asyncio.create_task(self._copy(old, new))

    @staticmethod
    async def _copy(standby: Node, primary: Node) -> None:
        """Make the node a standby again, however often the other crashes meanwhile."""
        for attempt in range(TRIES):
            try:
                await asyncio.to_thread(standby.follow, primary)
                return
            except AssertionError:
                if attempt == TRIES - 1:
                    raise
                await asyncio.sleep(0.5)


def _able(worker: Worker) -> bool:
    return worker.process.returncode is None and not worker.killed


def _ready(lines: list[Line]) -> bool:
    return {"ready": True} in lines
