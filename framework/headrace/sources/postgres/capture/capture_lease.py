"""The capture lease: one process at a time captures a source, as long as it keeps renewing the lease.

It is a lease in a table, not a session lock. It thus works through a connection pooler, and a process that freezes
loses it. Safety depends not on clocks but on the epoch that every append is checked against, see
`store/sql/functions/capture/captures.sql`.
"""

from __future__ import annotations

from uuid import UUID

import anyio

from headrace import store
from headrace.model.clock import Clock
from headrace.model.errors import LeaseLost, StoreUnavailable
from headrace.model.log import Log

log = Log("headrace")

LEASE_DURATION = 6.0
"""Lifetime of the lease in seconds. After that without a renewal, other processes may take the source over."""

RENEW_INTERVAL = 2.0
"""Seconds between two renewals."""


def lease_lost() -> LeaseLost:
    """Return the error of a process that no longer holds the lease."""
    return LeaseLost("The capture lease is lost. Another process captures the source, or it is paused or removed.")


class CaptureLease:
    """A capture lease that this process holds. Create it with `take`.

    Attributes:
        epoch: the epoch to append under.
    """

    def __init__(self, database: store.Database, number: int, epoch: int, clock: Clock) -> None:
        self._database = database
        self._number = number
        self._clock = clock
        self._expires_at = clock() + LEASE_DURATION
        self._epoch_lock = anyio.Lock()
        self.epoch = epoch

    @classmethod
    async def take(cls, database: store.Database, number: int, holder: UUID, clock: Clock) -> CaptureLease | None:
        """Take the lease. Returns None if another process holds it."""
        epoch = await store.take_capture(database, number, holder, LEASE_DURATION)
        return None if epoch is None else cls(database, number, epoch, clock)

    async def renew(self) -> None:
        """Renew the lease until cancelled. Raises `LeaseLost` when it is lost."""
        while True:
            await anyio.sleep(RENEW_INTERVAL)
            asked_at = self._clock()
            try:
                with anyio.fail_after(max(self._expires_at - asked_at, 0.1)):
                    async with self._epoch_lock:
                        held = await store.renew_capture(self._database, self._number, self.epoch, LEASE_DURATION)
            except (StoreUnavailable, TimeoutError):
                if self._clock() >= self._expires_at:
                    raise LeaseLost(
                        "The capture lease has expired, because the database could not be reached to renew it."
                    ) from None
                continue
            if not held:
                raise lease_lost()
            self._expires_at = asked_at + LEASE_DURATION

    async def reopen(self) -> None:
        """Continue under a new epoch after a capturer failed. Its last append may still be about to
        commit, even though the connection is lost. Raises `LeaseLost`, `StoreUnavailable`.
        """
        async with self._epoch_lock:
            epoch = await store.reopen_capture(self._database, self._number, self.epoch)
            if epoch is None:
                raise lease_lost()
            self.epoch = epoch

    async def release(self) -> None:
        """Release the lease. If the database can't be reached, the lease expires."""
        with anyio.move_on_after(RENEW_INTERVAL, shield=True):
            try:
                await store.release_capture(self._database, self._number, self.epoch)
            except StoreUnavailable as error:
                log.debug("capture lease not released", error=error)
