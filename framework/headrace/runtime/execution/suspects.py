"""Suspects: messages that a worker held when it died. One of them may have killed it.

The start of a suspect is recorded in the store first. When the worker dies again, the store knows
which of its suspects were in work, and counts a crash for these only. After `ALONE` crashes a
message runs alone, one at a time in this process. Soon only the culprit collects more crashes,
until `max_deliver` of them make it a dead letter.

A large batch may leave a hundred thousand suspects, and a separate call for each would take days.
So they run in groups, sized so that each suspect runs alone by the last attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from itertools import groupby
from math import ceil

import anyio

from headrace import store
from headrace.model.errors import LeaseLost, StoreUnavailable
from headrace.runtime.messages.message import Message, lease_time
from headrace.runtime.settling.acknowledger import Acknowledger

ALONE = 2
"""Number of crashes after which a message runs alone, if there are few such messages."""

FEW = 32
"""Up to this many suspects of a batch run one by one."""

ATTEMPTS_LEFT = 3
"""Largest number of attempts in which the suspects are narrowed down to one."""


class Suspects:
    """Controls the start of the suspects of one consumer."""

    def __init__(self, database: store.Database, consumer: int, acknowledger: Acknowledger) -> None:
        self._database = database
        self._consumer = consumer
        self._acknowledger = acknowledger
        self._alone = anyio.Lock()

    @asynccontextmanager
    async def starting(self, messages: Sequence[Message]) -> AsyncIterator[None]:
        """Enter before messages are run of which some have crashes.

        Raises:
            LeaseLost: the start can't be recorded, or a lease has ended. They must not be started.
        """
        suspects = [message for message in messages if message.crashes]
        alone = max(message.crashes for message in suspects) >= ALONE
        async with self._alone if alone else nullcontext():
            if alone:
                # Settle earlier acks first. If this message is the culprit and kills the process,
                # unsettled messages would count as suspects, too.
                await self._acknowledger.flush()
            await self._mark(suspects)
            lease_time(messages)  # one that was lost meanwhile may be a hold now, which the store has
            yield

    async def _mark(self, suspects: Sequence[Message]) -> None:
        leases, seqs = [message.lease.id for message in suspects], [message.seq for message in suspects]
        try:
            lost = await store.mark_started(self._database, self._consumer, leases, seqs)
        except StoreUnavailable as error:
            raise LeaseLost(f"The start of message {seqs[0]} can't be recorded: {error}") from error
        if lost:
            raise LeaseLost(f"The lease of message {seqs[0]} of {suspects[0].stream!r} was lost before it was started.")


def parts(messages: Sequence[Message], max_deliver: int = -1) -> list[list[Message]]:
    """Split a batch so that messages that must run alone do. The order is kept.

    Args:
        max_deliver: attempts before a message is exhausted, -1 for no limit. By the last attempt
            each suspect runs alone.
    """

    if all(message.crashes < ALONE for message in messages):
        return [list(messages)] if messages else []

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
    """How many of the suspects run together. Each remaining attempt divides the number by the same factor."""
    if suspects <= FEW:
        return 1
    left = ATTEMPTS_LEFT if max_deliver == -1 else max(1, min(max_deliver - attempt + 1, ATTEMPTS_LEFT))
    return ceil(round(float(suspects ** (1 - 1 / left)), 6))
