"""Suspects: messages that were in the hands of a worker when it died. One of them may have been what killed it.

Before a suspect is started, that is written down; when the worker dies again, the store knows which of its suspects were at
work, and counts a crash for these only. What has crashed while it was written down runs alone from then on, one at a time in
this process, so that soon only the culprit goes on collecting crashes, until `max_deliver` of them make it a dead letter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from headrace import store
from headrace.model.errors import LeaseLost, StoreUnavailable
from headrace.runtime.desk import Desk
from headrace.runtime.message import Message

ALONE = 2
"""Crashes from which on a message runs alone."""


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


def parts(messages: Sequence[Message]) -> list[list[Message]]:
    """A batch, cut so that what must run alone does. Its order stays."""
    found: list[list[Message]] = [[]]
    for message in messages:
        if message.crashes >= ALONE:
            found += [[message], []]
        else:
            found[-1].append(message)
    return [part for part in found if part]
