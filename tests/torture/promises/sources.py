"""What publishes: plainly, with ids by which a message that is sent again is known, and in transactions of services."""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from typing import Any

import asyncpg

from headrace import App
from headrace.model.errors import StoreUnavailable
from headrace.runtime import transaction
from tests.torture.promises.history import STREAM
from tests.torture.promises.observed import Notes
from tests.torture.worker import tell

SHARES = {"plain": 8, "batch": 36, "key": 22, "tx": 4, "txbatch": 15, "http": 15}
"""How many of a hundred messages are for each consumer."""

KEYS = {"plain": 60, "batch": 200, "key": 40, "tx": 40, "txbatch": 100, "http": 600}
"""How many keys each has of one publisher. Those of the first are few, so that runs of a key span leases."""

LONGEST = 200
"""Messages in one call at most."""

PAUSE = 0.05
"""Seconds between two calls when there is time."""


class Keys:
    """Draws keys, and numbers the messages of each. Some keys are hot.

    What is published together is for one consumer, so seqs that follow each other are: what a server remembers of a consumer's messages
    is of ranges then.
    """

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._chance = random.Random(seed)
        self._numbers: Counter[str] = Counter()

    def messages(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        """The next ones, all for one consumer."""
        kind = self._chance.choices(list(SHARES), list(SHARES.values()))[0]
        return [self._next(kind) for _ in range(count)]

    def _next(self, kind: str) -> tuple[str, dict[str, Any]]:
        key = f"{kind}.{self._name}.{int(KEYS[kind] * self._chance.random() ** 2)}"
        self._numbers[key] += 1
        return key, {"uid": f"{key}:{self._numbers[key]}", "n": self._numbers[key]}


class Paced:
    """Something that is to have happened so many times by now. What was missed is made up for.

    Args:
        rate: times a second.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._began = time.monotonic()
        self.count = 0

    def due(self) -> int:
        return max(0, int((time.monotonic() - self._began) * self._rate) - self.count)


class Publishers:
    """Publishes at a rate, in batches, each again and again until it is promised.

    Attributes:
        enough: once it is set, it publishes what is left of its number, and ends.
    """

    def __init__(self, app: App, notes: Notes, options: argparse.Namespace) -> None:
        self._app = app
        self._notes = notes
        self._keys = Keys(options.name, options.seed)
        self._paced = Paced(options.rate)
        self._count = options.count
        self.enough = asyncio.Event()

    async def end(self) -> None:
        pass

    async def run(self) -> None:
        while not (self.enough.is_set() and self._paced.count >= self._count):
            due = min(self._paced.due(), LONGEST)
            if due < LONGEST:
                await asyncio.sleep(PAUSE)
            if due == 0:
                continue
            self._paced.count += due
            if self._paced.count - due < self._count <= self._paced.count:
                tell(reached=True)
            await self._insist(self._keys.messages(due))

    async def _insist(self, messages: list[tuple[str, dict[str, Any]]]) -> None:
        uids = [data["uid"] for _, data in messages]
        while True:
            asked = time.time()
            try:
                await self._app.publish_many(STREAM, messages, message_ids=uids)
            except StoreUnavailable:
                await asyncio.sleep(0.05)
            else:
                self._notes.note("published", [(uid, asked, time.time()) for uid in uids])
                return


class Service:
    """Publishes and writes in `app.transaction()`, a few messages in each. Now and then it takes one back itself.

    A transaction that was not committed is made again, with the same messages; nothing but what it was told keeps it from making them
    twice.
    """

    def __init__(self, app: App, notes: Notes, options: argparse.Namespace) -> None:
        self._app = app
        self._notes = notes
        self._name = options.name
        self._seed = options.seed
        self._chance = random.Random(options.seed)
        self._paced = Paced(options.rate)
        self._looked_up: set[asyncio.Task[Any] | None] = set()
        self.enough = asyncio.Event()
        self._watch_look_ups()

    def _watch_look_ups(self) -> None:
        look_up = transaction.was_committed

        async def watched(*args: Any, **options: Any) -> bool | None:
            self._looked_up.add(asyncio.current_task())
            committed = await look_up(*args, **options)
            self._notes.note("look_up", [(committed,)])
            return committed

        transaction.was_committed = watched

    async def end(self) -> None:
        pass

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(6):  # each with keys of its own, so that nothing of a key is committed late
                group.create_task(self._work(Keys(f"service-{self._name}.{number}", self._seed + number)))

    async def _work(self, keys: Keys) -> None:
        while not self.enough.is_set():
            due = min(self._paced.due(), 4)
            if due == 0:
                await asyncio.sleep(0.02)
                continue
            self._paced.count += due
            await self._insist(keys.messages(due))

    async def _insist(self, messages: list[tuple[str, dict[str, Any]]]) -> None:
        uids = [data["uid"] for _, data in messages]
        while True:
            asked = time.time()
            self._looked_up.discard(asyncio.current_task())
            try:
                async with self._app.transaction() as tx:
                    await tx.executemany("insert into judge.service_rows (uid) values ($1)", [(uid,) for uid in uids])
                    await tx.publish_many(STREAM, messages)
                    if self._chance.random() < 0.02:
                        raise _ChangedMind
            except _ChangedMind:
                continue
            except (StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                # The driver's own errors come from the statements inside. Whatever was raised, nothing is committed.
                await asyncio.sleep(0.05)
            else:
                looked_up = asyncio.current_task() in self._looked_up
                self._notes.note("committed", [(uid, asked, time.time(), looked_up) for uid in uids])
                return


class _ChangedMind(Exception):
    """A reason of the service's own to roll back."""
