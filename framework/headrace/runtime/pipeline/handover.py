"""The handover of messages that wait in this process to one that has none.

The messages of a key are in order, so a key stays with the process that holds messages of it. A process that handles large
batches buffers the next one, and may hold messages of all keys. Then the others find no key that is free. So it looks for
them, and releases the keys that no handler is at. It keeps the keys of the batch at work, so that each process soon has keys of its own.
"""

from __future__ import annotations

from headrace import store
from headrace.flow.handover import HandoverPace
from headrace.model.log import Log
from headrace.runtime.settling.acknowledger import Acknowledger
from headrace.runtime.stored_consumer import LeasedMessages, StoredConsumer

log = Log("headrace")


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
        """If another process has no messages, release those of the keys that wait for an actor. Call it between lease calls.

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
            await self._acknowledger.flush()
            log.info("messages released to an idle process", consumer=spec.name, messages=len(messages))
        self.pace.released(self._clock(), [message.seq for message in messages])
        return bool(messages)
