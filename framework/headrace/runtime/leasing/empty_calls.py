"""Counts the lease calls that return nothing, for callers that wait until a consumer has nothing left to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from headrace.flow.in_flight import InFlightTracker


class EmptyCalls:
    """Counts lease calls, and remembers which of them returned nothing.

    Args:
        in_flight: the in-flight tracker of the consumer.

    Attributes:
        begun: the number of lease calls so far.
    """

    def __init__(self, in_flight: InFlightTracker[Any]) -> None:
        self._in_flight = in_flight
        self.begun = 0
        self._ended = anyio.Event()  # set by the next call that ends
        self._empty_since = 0  # the number of the last call if it returned nothing, otherwise 0
        self._finished_since = 0  # likewise, if nothing will fall due either
        self._waiting = 0
        self._stopped = False

    @property
    def watched(self) -> bool:
        """Whether a caller waits."""
        return self._waiting > 0

    def begin(self) -> None:
        """Note that a lease call begins."""
        self.begun += 1

    def end(self, *, empty: bool, finished: bool) -> None:
        """Note that a lease call has ended.

        Args:
            empty: it returned nothing.
            finished: it returned nothing, and nothing will fall due later.
        """
        self._empty_since = self.begun if empty else 0
        self._finished_since = self.begun if finished else 0
        if self._waiting:
            self._ended.set()
            self._ended = anyio.Event()

    def stop(self) -> None:
        """Let all callers return, because there will be no more calls."""
        self._stopped = True
        self._ended.set()

    async def until_finished(self) -> None:
        """Wait until a lease call that starts from now on returns nothing, nothing will fall due, and nothing
        is in flight."""
        await self._until(lambda asked: self._finished_since > asked)

    async def until_idle(self, paused: Callable[[], bool]) -> None:
        """Like `until_finished`, but without waiting for messages that fall due later, nor while `paused` returns True."""
        await self._until(lambda asked: self._empty_since > asked or paused())

    async def _until(self, nothing: Callable[[int], bool]) -> None:
        asked = self.begun
        self._waiting += 1
        try:
            while not (nothing(asked) and not self._in_flight.held) and not self._stopped:
                await self._ended.wait()
        finally:
            self._waiting -= 1
