"""The actors: each takes a ready lane, works on it, and takes the next. No task is made per message."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

import anyio
import anyio.abc

from headrace.flow.lanes import Lane, Lanes
from headrace.flow.priority import Rank
from headrace.runtime.bench import NEVER, Bench, at_work
from headrace.runtime.message import Message


class Work(Protocol):
    """What an actor does with a lane: `singles` or `batches`."""

    @property
    def unit(self) -> int:
        """How many messages it takes at a time, at most."""

    async def run(self, lane: Lane[Message], bench: Bench) -> bool:
        """Work on the lane; returns whether that is done, or must be gone on with at a fresh bench after a timeout."""


class Actors:
    """A pool of actors for one consumer.

    Args:
        timed: whether handlers have a timeout.
        least: how many there may be while consumers of higher priority go first.

    Attributes:
        rank: the consumer's priority, where there are others; it is told whether lanes wait for an actor.
        wanted: how many there should be ...
        target: ... and may be, for others may go first.
        count: how many there are. One that is too many leaves when it is done with its lane.
        busy: how many work on a lane.
        starved: how often one found no lane.
    """

    def __init__(self, work: Work, lanes: Lanes[Message], *, timed: bool, least: int) -> None:
        self._work = work
        self._lanes = lanes
        self._timed = timed
        self._idle: deque[anyio.Event] = deque()
        self._benches: set[Bench] = set()
        self._group: anyio.abc.TaskGroup | None = None
        self._over = anyio.Event()
        self.rank: Rank | None = None
        self._least = least
        self.wanted = 0
        self.target = 0
        self.count = 0
        self.busy = 0
        self.starved = 0

    @property
    def appetite(self) -> int:
        """How many messages they can work on at a time."""
        return self.target * self._work.unit

    @property
    def held(self) -> bool:
        """Whether others go first."""
        return self.rank is not None and self.rank.held

    async def run(self, first: int) -> None:
        """Run actors, `first` many to begin with, until `finish` and the end of what they do."""
        async with anyio.create_task_group() as self._group:
            self.resize(first)
            await self._over.wait()

    def resize(self, target: int) -> None:
        """Have `target` actors from now on; after `finish` it is too late for that."""
        self.wanted = target
        self.adjust()

    def adjust(self) -> None:
        """Have as many as there may be now."""
        if self._group is None or self._over.is_set():
            return
        self.target = min(self.wanted, self._least) if self.held else self.wanted
        for _ in range(self.target - self.count):
            self.count += 1
            self._group.start_soon(self._actor)
        for _ in range(self.count - self.target):
            self._wake_one()

    def wake(self) -> None:
        """Lanes have become ready, or no longer are: wake as many actors as can have one."""
        ready, idle = self._lanes.ready, len(self._idle)
        for _ in range(min(ready, idle)):
            self._wake_one()
        if self.rank is not None:
            self.rank.press(ready > idle)

    def finish(self) -> None:
        """No more lanes: every actor ends with what it is doing."""
        self.resize(0)
        self._over.set()

    def cancel(self) -> None:
        """Stop every handler now. What they were doing is given back."""
        if self._group is not None:
            self._group.cancel_scope.cancel()
        self._over.set()

    def overdue(self, now: float) -> Iterator[None]:
        """Stop handlers that have passed their timeout. Yields once for each."""
        for bench in list(self._benches):
            if bench.until <= now:
                bench.until = NEVER
                bench.overdue = True
                bench.scope.cancel()
                yield

    def _wake_one(self) -> None:
        if self._idle:
            self._idle.popleft().set()

    async def _actor(self) -> None:
        bench = Bench()
        at_work.set(bench)
        work = self._work_timed if self._timed else self._work.run
        lanes, rank = self._lanes, self.rank
        try:
            while self.count <= self.target:
                lane = lanes.take()
                if rank is not None and not lanes.ready:
                    rank.press(False)
                if lane is not None:
                    self.busy += 1
                    try:
                        await work(lane, bench)
                    finally:
                        self.busy -= 1
                        bench.delivery = None
                else:
                    self.starved += 1
                    event = anyio.Event()
                    self._idle.append(event)
                    await event.wait()
        finally:
            self.count -= 1

    async def _work_timed(self, lane: Lane[Message], bench: Bench) -> None:
        """Work on a lane with a timeout. The scope belongs to the bench: one per message would cost more than all the rest.

        A timeout spends it, and then the lane goes on with a fresh one.
        """
        done = False
        self._benches.add(bench)
        try:
            while not done:
                bench.clear()
                with bench.scope:
                    done = await self._work.run(lane, bench)
        finally:
            self._benches.discard(bench)

    def statistics(self) -> dict[str, int]:
        """Actors there are, should be, and that are busy."""
        return {"actors": self.count, "target": self.target, "busy": self.busy}
