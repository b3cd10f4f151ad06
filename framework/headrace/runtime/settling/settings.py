"""The settings of a running consumer. An operator may change them, and the next lease call applies the
change."""

from __future__ import annotations

import anyio

from headrace import store
from headrace.model.errors import StoreUnavailable, UnknownConsumer
from headrace.model.specs import ConsumerSpec


class Settings:
    """The current settings, shared by all parts of a pipeline.

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

    async def still_exists(self, database: store.Database, consumer: int) -> bool:
        """Find out whether leases were lost because the consumer was deleted.

        Returns whether the consumer exists, as far as is known.
        """
        try:
            if not self.gone:
                await store.consumer_spec(database, consumer)
        except UnknownConsumer:
            self.gone = True
        except StoreUnavailable:
            pass
        return not self.gone

    async def rest(self) -> None:
        """Wait for half of `ack_wait`. If it changes meanwhile, the newest value applies."""
        while True:
            wait = self.spec.ack_wait / 2
            with anyio.move_on_after(wait):
                await self._changed.wait()
                if self.spec.ack_wait / 2 < wait:
                    return  # leases have been taken that end sooner than the planned end of this wait
                continue
            return
