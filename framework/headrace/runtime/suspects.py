"""Suspects: messages that were in the hands of a worker when it died. One of them may have been what killed it.

Before a suspect is started, that is written down; when the worker dies again, the store knows which of its suspects were at
work, and counts a crash for these only. What has crashed while it was written down runs alone from then on, one at a time in
this process, so that soon only the culprit goes on collecting crashes, until `max_deliver` of them make it a dead letter.

Of a large batch there may be a hundred thousand suspects, for which a call each would take days. They are run some at a time, so many that by
the last attempt each runs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from math import ceil

import anyio

from headrace import store
from headrace.model.errors import LeaseLost, StoreUnavailable
from headrace.runtime.desk import Desk
from headrace.runtime.message import Message

ALONE = 2
"""Crashes from which on a message runs alone, if there are few of them."""

FEW = 32
"""Up to so many suspects of a batch run one by one."""

ATTEMPTS_LEFT = 3
"""In so many attempts at the most suspects are narrowed down to one."""


class Suspects:
    """Lets the suspects of one consumer start."""

    def __init__(self, database: store.Database, consumer: int, desk: Desk) -> None:
        self._database = database
        self._consumer = consumer
        self._desk = desk
        self._alone = anyio.Lock()

    @asynccontextmanager
    async def starting(self, messages: Sequence[Message]) -> AsyncIterator[None]:
        """Around the run of messages that have crashes, some of them.

        Raises:
            LeaseLost: it can't be written down that they are started, so they must not be.
        """
        suspects = [message for message in messages if message.crashes]
        if max(message.crashes for message in suspects) < ALONE:
            await self._mark(suspects)
            yield
        else:
            async with self._alone:
                # The acks of those before must not be lost when this one is the culprit: they would count as its accomplices.
                await self._desk.settler.flush()
                await self._mark(suspects)
                yield

    async def _mark(self, suspects: Sequence[Message]) -> None:
        leases, seqs = [message.lease.id for message in suspects], [message.seq for message in suspects]
        try:
            lost = await store.mark_started(self._database, self._consumer, leases, seqs)
        except StoreUnavailable as error:
            raise LeaseLost(f"It can't be written down that message {seqs[0]} is started: {error}") from error
        if lost:
            raise LeaseLost(f"The lease of message {seqs[0]} of {suspects[0].stream!r} was lost before it was started.")


def parts(messages: Sequence[Message], max_deliver: int = -1) -> list[list[Message]]:
    """A batch, cut so that what must run alone does. Its order stays.

    Args:
        max_deliver: attempts before a message is exhausted, -1 for no end: by the last one each suspect runs alone.
    """

    def stage(message: Message) -> int:
        return message.attempt if message.crashes >= ALONE else 0

    suspects = Counter(stage(message) for message in messages)
    found: list[list[Message]] = []
    for attempt, run in groupby(messages, stage):
        members = list(run)
        size = _together(suspects[attempt], attempt, max_deliver) if attempt else len(members)
        found += [members[place : place + size] for place in range(0, len(members), size)]
    return found


def _together(suspects: int, attempt: int, max_deliver: int) -> int:
    """How many of so many suspects run together: the number is cut by the same factor at each attempt that is left."""
    if suspects <= FEW:
        return 1
    left = ATTEMPTS_LEFT if max_deliver == -1 else max(1, min(max_deliver - attempt + 1, ATTEMPTS_LEFT))
    return ceil(round(float(suspects ** (1 - 1 / left)), 6))
