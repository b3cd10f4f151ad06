"""The run of the demo: a history is published, two processes handle it, and things go wrong meanwhile."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from headrace import App
from headrace.cli.demo.books import Books
from headrace.cli.demo.git_log import Change
from headrace.cli.demo.histories import History
from headrace.cli.demo.processes import Workers, workers
from headrace.cli.demo.worker_settings import ATTEMPTS, CONSUMER, WorkerSettings
from headrace.cli.errors import StoppedEarly
from headrace.cli.exit_codes import NOT_DONE

PROCESSES = 2
BATCH = 1000
"""The most messages published in one transaction."""

WATCH_INTERVAL = 0.2
KILL_WITHIN = 5.0
"""Seconds within which a process is killed. With a short history, nothing may be in its hands any more."""

STALL = 60.0
"""Seconds without any progress after which the demo gives up."""

OPENED_AT, POISONED_AT, KILLED_AT, COMMITTED_AT = 0.2, 0.35, 0.5, 0.7
"""When things happen, as shares of the history."""

EXTRA = 2
"""Messages beside the history: the late one and the poison."""

LANES = 200
"""The most messages in flight that are looked at."""


class Pace(msgspec.Struct, frozen=True):
    """How fast the run goes.

    Attributes:
        seconds: how long publishing takes, or None for as fast as possible.
        work: how long a handler waits, in seconds.
        ack_wait: after how many seconds the messages of a killed process are redelivered.
    """

    seconds: float | None
    work: float
    ack_wait: float


SLOW = Pace(20.0, 0.2, 3.0)
FAST = Pace(None, 0.01, 1.5)


class Lane(msgspec.Struct, frozen=True):
    """A message in flight."""

    process: int
    """The process that has it, counted from 1 in the order in which they were first seen."""
    seq: int
    key: str
    attempt: int


class State(msgspec.Struct):
    """The visible parts of the demo.

    Attributes:
        total: messages that will be published.
        seconds: since the start.
        events: what happened, each with its second.
    """

    total: int = 0
    seconds: float = 0.0
    published: int = 0
    handled: int = 0
    dead: int = 0
    lanes: list[Lane] = []
    processes: int = 0
    events: list[tuple[float, str]] = []

    @property
    def lag(self) -> int:
        """The number of messages that are published and not done with."""
        return self.published - self.handled - self.dead


Show = Callable[[State], None]


class Scenario:
    """One run.

    Args:
        app: a connected app.
        show: is called whenever there is something new to see.
    """

    def __init__(self, app: App, stream: str, history: History, books: Books, pace: Pace, show: Show) -> None:
        self._app = app
        self._stream = stream
        self._history = history
        self._books = books
        self._pace = pace
        self._show = show
        self._started = time.monotonic()
        self._owners: list[Any] = []
        self.state = State()

    async def run(self, actors: int) -> None:
        """Run until everything is handled.

        Args:
            actors: how many batches a process handles at the same time.
        """
        settings = WorkerSettings(self._stream, actors, self._pace.work, self._pace.ack_wait)
        async with workers(settings, self._app.database.dsn, PROCESSES) as processes:
            self._note(f"{PROCESSES} worker processes start")
            async with self._watching(processes):
                async with anyio.create_task_group() as group:

                    async def kill() -> None:
                        group.start_soon(self._kill, processes)

                    await self._publish(kill)
                await self._until_handled()
            self._note("everything is handled")
            await self._look(processes)

    # --- what is published, and what goes wrong

    async def _publish(self, kill: Callable[[], Awaitable[None]]) -> None:
        async with self._late_commit() as (open_, commit):
            steps: list[tuple[float, Callable[[], Awaitable[None]]]] = [
                (OPENED_AT, open_),
                (POISONED_AT, self._poison),
                (KILLED_AT, kill),
                (COMMITTED_AT, commit),
            ]
            expected = await anyio.to_thread.run_sync(self._history.count)
            self.state.total = expected + EXTRA
            batches = _batches(self._history.messages(), self._batch_size(expected))
            began = time.monotonic()
            # In a thread, because git takes time and the workers are at it meanwhile.
            while batch := await anyio.to_thread.run_sync(next, batches, None):
                while steps and self.state.published >= steps[0][0] * expected:
                    await steps.pop(0)[1]()
                self.state.published += await self._app.publish_many(self._stream, batch)
                if self._pace.seconds is not None:
                    due = began + self._pace.seconds * self.state.published / max(expected, 1)
                    await anyio.sleep(max(0.0, due - time.monotonic()))
            for _, step in steps:  # of a history with few changes
                await step()
        self._note("everything is published")

    def _batch_size(self, expected: int) -> int:
        if self._pace.seconds is None:
            return BATCH
        return min(BATCH, 1 + int(expected / self._pace.seconds / 10))

    @asynccontextmanager
    async def _late_commit(self) -> AsyncIterator[tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]]:
        """Two functions: one that publishes in a transaction that it leaves open, and one that commits it."""
        connection = await self._app.database.connect()
        transaction = connection.transaction()
        at = 0

        async def open_() -> None:
            nonlocal at
            await transaction.start()
            change = Change("demo", "0" * 40, 0, "late", "insert", None, "f" * 40, 1, 0)
            await self._app.publish(self._stream, "demo.late", change, tx=connection)
            at = self.state.published
            self._note("a publisher takes a sequence number, and leaves its transaction open")

        async def commit() -> None:
            await transaction.commit()
            self.state.published += 1
            passed = self.state.published - 1 - at
            self._note(f"it commits, {passed:,} messages later, and its message is not passed by")

        try:
            yield open_, commit
        finally:
            connection.terminate()

    async def _poison(self) -> None:
        change = Change("demo", "0" * 40, 0, "poison", "update", None, None, 0, 0)
        await self._app.publish(self._stream, "demo.poison", change)
        self.state.published += 1
        self._note(f"a poison message: its handler raises; {ATTEMPTS} attempts, then it is a dead letter")

    async def _kill(self, processes: Workers) -> None:
        """Kill a process while messages are in its hands, as they are in those of all others."""
        with anyio.move_on_after(KILL_WITHIN):
            while len({row["owner"] for row in await self._in_flight()}) < PROCESSES:
                processes.check()
                await anyio.sleep(0.01)
        pid = await processes.kill_one()
        self._note(f"process {pid} is killed (SIGKILL) in the middle of its work; another one starts")

    # --- what is seen

    @asynccontextmanager
    async def _watching(self, processes: Workers) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                await self._look(processes)
                await anyio.sleep(WATCH_INTERVAL)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            yield
            group.cancel_scope.cancel()

    async def _look(self, processes: Workers) -> None:
        processes.check()
        state = self.state
        state.handled = await self._books.handled(self._app.database)
        state.processes = len(processes.running)
        state.lanes = [
            Lane(self._number(row["owner"]), row["seq"], row["key"], row["attempt"]) for row in await self._in_flight()
        ]
        dead = await self._app.database.fetchval(
            "select count(*) from headrace.dead_letters where stream = $1", self._stream
        )
        if dead > state.dead:
            self._note("the poison message is a dead letter, with its traceback; all others were handled")
        state.dead = dead
        state.seconds = time.monotonic() - self._started
        self._show(state)

    async def _in_flight(self) -> list[Any]:
        return await self._app.database.fetch(
            f"""select f.owner, f.seq, f.attempt, m.key from headrace.in_flight as f
                join headrace_streams."{self._stream}" as m using (seq)
                where f.stream = $1 and f.consumer = $2 order by f.seq limit {LANES}""",
            self._stream,
            CONSUMER,
        )

    def _number(self, owner: Any) -> int:
        if owner not in self._owners:
            self._owners.append(owner)
        return self._owners.index(owner) + 1

    async def _until_handled(self) -> None:
        last, changed = -1, time.monotonic()
        while (done := self.state.handled + self.state.dead) < self.state.published:
            if done > last:
                last, changed = done, time.monotonic()
            elif time.monotonic() - changed > STALL:
                raise StoppedEarly(f"Nothing was handled for {STALL:g} seconds, after {done:,} messages.", NOT_DONE)
            await anyio.sleep(WATCH_INTERVAL / 2)

    def _note(self, text: str) -> None:
        self.state.events.append((time.monotonic() - self._started, text))


def _batches(items: Iterable[tuple[str, Change]], size: int) -> Iterator[list[tuple[str, Change]]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
