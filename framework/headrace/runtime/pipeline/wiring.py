"""The interfaces through which the parts of a pipeline call each other. The pipeline connects the parts."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from headrace.flow.in_flight import InFlightTracker
from headrace.model.specs import ConsumerSpec

Clock = Callable[[], float]
"""A monotonic clock in seconds."""


class Time(msgspec.Struct, frozen=True):
    """The clocks of a service. A test passes its own.

    Attributes:
        clock: seconds, monotonic, for deadlines, waits and rates in this process.
        now: the time for leases and settles, or None for the time of the database server.
        date: the time that the server gives to messages, as far as this process knows it. Delays of
            scheduled messages count from it.
    """

    clock: Clock = time.monotonic
    now: Callable[[], datetime | None] = lambda: None
    date: Callable[[], datetime] = lambda: datetime.now(UTC)


SYSTEM_TIME = Time()

Call = Callable[[Any, Any], Awaitable[Any]]
"""Runs a handler. Takes the payload and the message, or the payloads and the `Batch`, and returns what
the handler returned."""


class Witness(Protocol):
    """The test kit's hooks. They observe every delivery, and the test kit runs the janitor's work on demand."""

    def in_flight(self, spec: ConsumerSpec) -> InFlightTracker[Any]:
        """Return the in-flight tracker of a consumer."""

    def inside(self, spec: ConsumerSpec, call: Call) -> Call:
        """Wrap the call directly around the function, inside everything else."""

    def outside(self, spec: ConsumerSpec, call: Call) -> Call:
        """Wrap the call that the actor makes, outside everything else."""


class Settling(Protocol):
    """The settler, as the acknowledger and the fetcher see it."""

    def wake(self) -> None: ...
    async def flush(self) -> None: ...


class Keeping(Protocol):
    """The keeper, as the acknowledger sees it."""

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
        """How many messages the actors can work on at the same time."""

    def wake(self) -> None: ...
