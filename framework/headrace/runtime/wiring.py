"""What the parts of a pipeline know of those further on: only this. The pipeline ties them together."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Protocol

import msgspec

Clock = Callable[[], float]
"""Seconds, monotonic."""


class Time(msgspec.Struct, frozen=True):
    """Both clocks that a pipeline goes by. A test hands in its own.

    Attributes:
        clock: seconds, monotonic: deadlines, waits and rates in this process.
        now: the time of day for the store, or None for that of the database server.
    """

    clock: Clock = time.monotonic
    now: Callable[[], datetime | None] = lambda: None


SYSTEM_TIME = Time()

Call = Callable[[Any, Any], Awaitable[Any]]
"""Run a handler: takes the payload and the message, or the payloads and the `Batch`, and returns what the handler returned."""


class Settling(Protocol):
    """The settler, as the desk and the fetcher see it."""

    def wake(self) -> None: ...
    async def flush(self) -> None: ...


class Keeping(Protocol):
    """The keeper, as the desk sees it."""

    async def extend(self) -> None: ...


class Fetching(Protocol):
    """The fetcher, as the settler sees it."""

    def room(self) -> None: ...
    def wake(self) -> None: ...


class Acting(Protocol):
    """The actors, as the fetcher sees them."""

    @property
    def appetite(self) -> int:
        """How many messages they can work on at a time."""

    def wake(self) -> None: ...
