"""The state that the parts of a pipeline share: the consumer in its database with its current settings, and its leased
messages."""

from __future__ import annotations

from uuid import UUID

import anyio
import msgspec

from headrace import store
from headrace.flow.in_flight import InFlightTracker
from headrace.flow.lanes import Lanes
from headrace.model.clock import Time
from headrace.model.errors import StoreUnavailable, UnknownConsumer
from headrace.model.specs import ConsumerSpec
from headrace.model.watching.processes import own_process_name
from headrace.runtime.messages.message import Message


class Settings:
    """The current settings of a running consumer. An operator may change them, and the next lease call applies the change.

    Attributes:
        spec: the newest known settings.
        version: their version in the store, or None before the first lease call.
        gone: whether the consumer was deleted together with its leases.
    """

    def __init__(self, spec: ConsumerSpec) -> None:
        self.spec = spec
        self.version: int | None = None
        self.gone = False
        self._changed = anyio.Event()

    def change(self, spec: ConsumerSpec, version: int) -> None:
        """Apply new settings."""
        self.spec, self.version = spec, version
        self._changed.set()
        self._changed = anyio.Event()

    async def rest(self) -> None:
        """Wait for half of `ack_wait`, or until it is shorter. If it becomes longer, existing leases end as before."""
        wait = self.spec.ack_wait / 2
        with anyio.move_on_after(wait):
            while self.spec.ack_wait / 2 >= wait:
                await self._changed.wait()


class StoredConsumer(msgspec.Struct, frozen=True):
    """A consumer in its database, and the pipeline's identity there.

    Attributes:
        database: an open database.
        id: the consumer's id.
        owner: the owner of the pipeline's leases.
        settings: the current settings.
        time: the clocks of the process.
    """

    database: store.Database
    id: int
    owner: UUID
    settings: Settings
    time: Time

    async def still_exists(self) -> bool:
        """Find out whether leases were lost because the consumer was deleted.

        Returns whether the consumer exists, as far as is known.
        """
        try:
            if not self.settings.gone:
                await store.consumer_spec(self.database, self.id)
        except UnknownConsumer:
            self.settings.gone = True
        except StoreUnavailable:
            pass
        return not self.settings.gone

    def handled(self, message: Message) -> store.Handled | None:
        """Return how this process has handled a message until now. None if the consumer keeps no history."""
        if self.settings.spec.history is None:
            return None
        return store.Handled(
            own_process_name(), message.lease.note_seconds(message.seq, message.began, self.time.clock())
        )


class LeasedMessages(msgspec.Struct, frozen=True):
    """The messages that a pipeline has leased.

    Attributes:
        lanes: where messages wait for an actor.
        in_flight: tracks messages from their lease until they are settled.
    """

    lanes: Lanes[Message]
    in_flight: InFlightTracker[Message]
