"""Notices when a consumer has nothing left to do, for callers that wait for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from headrace.flow.in_flight import InFlightTracker


class QuietWatch:
    """Counts lease calls, and remembers which of them found nothing.

    Args:
        in_flight: the in-flight tracker of the consumer.

    Attributes:
        begun: the number of lease calls so far.
    """

    def __init__(self, in_flight: InFlightTracker[Any]) -> None:
        self._in_flight = in_flight
        self.begun = 0
        self._ended = anyio.Event()  # set by the next call that ends
        self._quiet_since = 0  # the number of the last call if it found nothing, otherwise 0
        self._dry_since = 0  # likewise, if nothing will fall due either
        self._waiting = 0
        self._stopped = False

    @property
    def watched(self) -> bool:
        """Whether a caller waits."""
        return self._waiting > 0

    def begin(self) -> None:
        """Note that a lease call begins."""
        self.begun += 1

    def end(self, *, quiet: bool, dry: bool) -> None:
        """Note that a lease call has ended.

        Args:
            quiet: it found nothing.
            dry: it found nothing, and nothing will fall due later.
        """
        self._quiet_since = self.begun if quiet else 0
        self._dry_since = self.begun if dry else 0
        self._ended.set()
        self._ended = anyio.Event()

    def stop(self) -> None:
        """Let all callers return, because there will be no more calls."""
        self._stopped = True
        self._ended.set()

    async def dry(self) -> None:
        """Wait until a lease call that starts from now on finds nothing, nothing will fall due, and nothing
        is in flight."""
        await self._until(lambda asked: self._dry_since > asked)

    async def quiet(self, paused: Callable[[], bool]) -> None:
        """Like `dry`, but without waiting for what falls due later, nor while `paused` returns True."""
        await self._until(lambda asked: self._quiet_since > asked or paused())

    async def _until(self, nothing: Callable[[int], bool]) -> None:
        asked = self.begun
        self._waiting += 1
        try:
            while not (nothing(asked) and not self._in_flight.held) and not self._stopped:
                await self._ended.wait()
        finally:
            self._waiting -= 1
