"""The handover of messages that wait in this process to one that has none.

The messages of a key are in order, so a key stays with the process that holds messages of it. A process that handles
large batches buffers the next one, and may hold messages of all keys. Then the others find no key that is free. So it
looks for them, and releases the keys that no handler is at. It keeps the keys of the batch at work, so that each
process soon has keys of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import anyio

from headrace import store
from headrace.model.log import Log
from headrace.runtime.settling.acknowledger import Acknowledger
from headrace.runtime.stored_consumer import LeasedMessages, StoredConsumer

log = Log("headrace")


class HandoverPace:
    """How often a process looks for others that have no messages.

    If it leases them again, no other process could take them, and it waits twice as long before it looks again.
    """

    SHORTEST, LONGEST = 1.0, 60.0
    """Seconds from one look to the next."""
    PAUSE = 0.6
    """Seconds without a lease call after messages were released. An idle process calls within half a second of a
    notification, see `NotificationBackoff`."""

    def __init__(self) -> None:
        self._interval = self.SHORTEST
        self._next_at = -math.inf
        self._released: int | None = None  # the first message released, unless it was leased again

    def due(self, now: float) -> bool:
        """Whether to look now. Then the next look is due later, even if this one fails. `now`: seconds, monotonic."""
        if now < self._next_at:
            return False
        self._next_at = now + self._interval
        return True

    def released(self, now: float, seqs: Collection[int]) -> None:
        """Note the messages that were released after a look, by their seqs. None were if no process is idle."""
        if not seqs or self._released is not None:
            self._interval = self.SHORTEST
            self._next_at = now + self._interval
        if seqs:
            self._released = min(seqs)

    def leased(self, now: float, seqs: Collection[int]) -> None:
        """Note the messages of a lease call."""
        if self._released is not None and self._released in seqs:
            self._released = None
            self._interval = min(self._interval * 2, self.LONGEST)
            self._next_at = now + self._interval


class Handover:
    """Releases messages of a consumer to other processes.

    Args:
        acknowledger: releases the messages.

    Attributes:
        pace: when it looks for other processes, and when the next lease call may be.
    """

    def __init__(self, consumer: StoredConsumer, leased: LeasedMessages, acknowledger: Acknowledger) -> None:
        self.pace = HandoverPace()
        self._consumer = consumer
        self._lanes = leased.lanes
        self._acknowledger = acknowledger
        self._clock = consumer.time.clock

    async def offer(self) -> bool:
        """If another process has no messages, release those of the keys that wait for an actor. Call it between lease
        calls.

        Returns whether any were released. The next lease call must wait for `HandoverPace.PAUSE`.

        Raises:
            StoreUnavailable: the database can't be reached.
        """
        spec = self._consumer.settings.spec
        # With a rate limit, the messages have taken their tokens, and others would need tokens for them again.
        if not self._lanes.ready or spec.rate_limit is not None or not self.pace.due(self._clock()):
            return False
        messages = []
        if await store.has_idle_owner(self._consumer.database, self._consumer.id, self._consumer.owner):
            messages = self._lanes.take_ready()
            self._acknowledger.release(messages)
            with anyio.move_on_after(HandoverPace.PAUSE):  # a stop waits for the fetcher, and settles what is left
                await self._acknowledger.flush()
            log.info("messages released to an idle process", consumer=spec.name, messages=len(messages))
        self.pace.released(self._clock(), [message.seq for message in messages])
        return bool(messages)
