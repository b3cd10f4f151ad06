"""What the parts of a pipeline know of those further on: only this. The pipeline ties them together."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from headrace.flow.custody import Custody
from headrace.model.specs import ConsumerSpec

Clock = Callable[[], float]
"""Seconds, monotonic."""


class Time(msgspec.Struct, frozen=True):
    """The clocks that a service goes by. A test hands in its own.

    Attributes:
        clock: seconds, monotonic: deadlines, waits and rates in this process.
        now: the time of day for leases and settles, or None for that of the database server.
        date: the time of day that the server stamps messages with, as far as it is known here: what is published for later
            counts from it.
    """

    clock: Clock = time.monotonic
    now: Callable[[], datetime | None] = lambda: None
    date: Callable[[], datetime] = lambda: datetime.now(UTC)


SYSTEM_TIME = Time()

Call = Callable[[Any, Any], Awaitable[Any]]
"""Run a handler: takes the payload and the message, or the payloads and the `Batch`, and returns what the handler returned."""


class Witness(Protocol):
    """Who watches every delivery from close by, and does the janitor's work when it wants it done: the test kit."""

    def custody(self, spec: ConsumerSpec) -> Custody[Any]:
        """Where the outcomes of a consumer are recorded."""

    def inside(self, spec: ConsumerSpec, call: Call) -> Call:
        """The handler's call, with something next to the function, inside of everything else that is around it."""

    def outside(self, spec: ConsumerSpec, call: Call) -> Call:
        """The call as the actor makes it, with something around everything else."""


class Settling(Protocol):
    """The settler, as the desk and the fetcher see it."""

    def wake(self) -> None: ...
    async def flush(self) -> None: ...


class Keeping(Protocol):
    """The keeper, as the desk sees it."""

    async def extend(self) -> None: ...


class Fetching(Protocol):
    """The fetcher, as the settler sees it."""

    def rewound(self) -> None: ...
    def room(self) -> None: ...
    def wake(self) -> None: ...


class Acting(Protocol):
    """The actors, as the fetcher sees them."""

    @property
    def appetite(self) -> int:
        """How many messages they can work on at a time."""

    def wake(self) -> None: ...
