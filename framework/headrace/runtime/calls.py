"""The call of a handler, and the hooks around it for the test kit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from headrace.flow.in_flight import InFlightTracker
from headrace.model.specs import ConsumerSpec

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
