"""A tenure: one process at a time captures a source, for as long as it says so again and again.

It is a lease in a table, not a lock of a session, so that a pooler may stand between, and so that a process which freezes loses it. What
makes that safe is not the clock but the epoch that everything is appended under; see `store/sql/functions/captures.sql`.
"""

from __future__ import annotations

import logging
from uuid import UUID

import anyio

from headrace import store
from headrace.model.errors import LeaseLost, StoreUnavailable
from headrace.runtime.wiring import Clock

logger = logging.getLogger("headrace")

LASTS = 6.0
"""Seconds from the last renewal after which others may take it over."""

RENEW = 2.0
"""Seconds between renewals."""


class Tenure:
    """One that has begun. Get it from `take`.

    Attributes:
        epoch: what to append under.
    """

    def __init__(self, database: store.Database, number: int, epoch: int, clock: Clock) -> None:
        self._database = database
        self._number = number
        self._clock = clock
        self._until = clock() + LASTS
        self._epoch_in_use = anyio.Lock()
        self.epoch = epoch

    @classmethod
    async def take(cls, database: store.Database, number: int, holder: UUID, clock: Clock) -> Tenure | None:
        """Begin one, unless somebody else has one."""
        epoch = await store.take_capture(database, number, holder, LASTS)
        return None if epoch is None else cls(database, number, epoch, clock)

    async def keep(self) -> None:
        """Renew it until cancelled. Raises `LeaseLost` when it is over."""
        while True:
            await anyio.sleep(RENEW)
            began = self._clock()
            try:
                with anyio.fail_after(max(self._until - began, 0.1)):
                    async with self._epoch_in_use:
                        held = await store.renew_capture(self._database, self._number, self.epoch, LASTS)
            except (StoreUnavailable, TimeoutError):
                if self._clock() >= self._until:
                    raise LeaseLost(
                        "The database could not be reached to say that the source is still captured here."
                    ) from None
                continue
            if not held:
                raise LeaseLost("The source is captured by another process now, or is paused or removed.")
            self._until = began + LASTS

    async def reopen(self) -> None:
        """Go on under another epoch, after a capturer broke off: what it appended last may still be on its way to its commit, though the
        connection is lost here. Raises `LeaseLost`, `StoreUnavailable`."""
        async with self._epoch_in_use:
            epoch = await store.reopen_capture(self._database, self._number, self.epoch)
            if epoch is None:
                raise LeaseLost("The source is captured by another process now, or is paused or removed.")
            self.epoch = epoch

    async def release(self) -> None:
        """End it, as far as that can be said; otherwise it runs out."""
        with anyio.move_on_after(RENEW, shield=True):
            try:
                await store.release_capture(self._database, self._number, self.epoch)
            except StoreUnavailable as error:
                logger.debug("a tenure could not be released: %s", error)
