"""The settings of a consumer while it runs: an operator may change them, and they count from the next lease call."""

from __future__ import annotations

import anyio

from headrace import store
from headrace.model.errors import StoreUnavailable, UnknownConsumer
from headrace.model.specs import ConsumerSpec


class Settings:
    """What all parts of a pipeline go by.

    Attributes:
        spec: the newest settings that are known.
        version: their version in the store, or None before the first lease call.
        gone: whether the consumer was deleted, and all its leases with it.
    """

    def __init__(self, spec: ConsumerSpec) -> None:
        self.spec = spec
        self.version: int | None = None
        self.gone = False
        self._changed = anyio.Event()

    def change(self, spec: ConsumerSpec, version: int) -> None:
        """Go by these from now on."""
        self.spec, self.version = spec, version
        self._changed.set()
        self._changed = anyio.Event()

    async def look_for(self, database: store.Database, consumer: int) -> bool:
        """Leases were lost: find out whether that is because the consumer was deleted. Returns whether it is there, as far as is known."""
        try:
            if not self.gone:
                await store.consumer_spec(database, consumer)
        except UnknownConsumer:
            self.gone = True
        except StoreUnavailable:
            pass
        return not self.gone

    async def rest(self) -> None:
        """Wait for half of `ack_wait`, that of the newest settings: they may change meanwhile."""
        while True:
            wait = self.spec.ack_wait / 2
            with anyio.move_on_after(wait):
                await self._changed.wait()
                if self.spec.ack_wait / 2 < wait:
                    return  # leases have been taken that end sooner than one had planned to wake
                continue
            return
