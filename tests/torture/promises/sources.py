"""Publishers of the torture run: plain ones, ones that deduplicate by message id, and services that
publish in transactions.
"""

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
from headrace.runtime.messages import transaction
from tests.torture.promises.history import STREAM
from tests.torture.promises.observed import Notes
from tests.torture.worker import report_event

SHARES = {"plain": 8, "batch": 36, "key": 22, "tx": 4, "txbatch": 15, "http": 15}
"""Percentage of the messages for each consumer."""

KEYS = {"plain": 60, "batch": 200, "key": 40, "tx": 40, "txbatch": 100, "http": 600}
"""Number of keys of each consumer for one publisher. Where it is small, runs of a key span leases."""

LONGEST = 200
"""Maximum number of messages in one call."""

PAUSE = 0.05
"""Seconds between two calls if there is time."""


class Keys:
    """Draws keys, and numbers the messages of each. Some keys are hot.

    All messages of one call are for one consumer, so that a consumer's consecutive messages often have
    consecutive seqs. The store then records ranges of them.
    """

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._chance = random.Random(seed)
        self._numbers: Counter[str] = Counter()

    def messages(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        """Return the next messages, all for one consumer."""
        kind = self._chance.choices(list(SHARES), list(SHARES.values()))[0]
        return [self._next(kind) for _ in range(count)]

    def _next(self, kind: str) -> tuple[str, dict[str, Any]]:
        key = f"{kind}.{self._name}.{int(KEYS[kind] * self._chance.random() ** 2)}"
        self._numbers[key] += 1
        return key, {"uid": f"{key}:{self._numbers[key]}", "n": self._numbers[key]}


class Paced:
    """A counter of how often something should have happened by now. Missed times are made up.

    Args:
        rate: Times per second.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._began = time.monotonic()
        self.count = 0

    def due(self) -> int:
        return max(0, int((time.monotonic() - self._began) * self._rate) - self.count)


class Publishers:
    """Publishes at a rate, in batches. Each batch is retried until it is confirmed.

    Attributes:
        enough: Once it is set, the publisher publishes the rest of its number and ends.
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
                report_event(reached=True)
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
    """Publishes and writes in `app.transaction()`, a few messages in each. Sometimes it rolls a transaction back.

    A transaction that was not committed is repeated with the same messages. Only the reported outcome
    keeps the service from publishing them twice.
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
            for number in range(6):  # each with separate keys, so that no message of a key commits late
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
                # The driver's own errors come from the statements inside. Whatever was raised, nothing is
                # committed.
                await asyncio.sleep(0.05)
            else:
                looked_up = asyncio.current_task() in self._looked_up
                self._notes.note("committed", [(uid, asked, time.time(), looked_up) for uid in uids])
                return


class _ChangedMind(Exception):
    """The service's own reason to roll back."""
