"""The hooks for telemetry. None is called when telemetry is off. Only the wrapper that `process`
returns runs once per message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from headrace.model.records import Batch as Leased
from headrace.model.records import ConsumerInfo
from headrace.model.specs import ConsumerSpec
from headrace.runtime.calls import Call


class Sending(Protocol):
    """A publish that telemetry observes.

    Attributes:
        headers: the headers of its messages as JSON text, with the trace in them.
        seq: set it once it is known, if there is one message.
    """

    headers: Sequence[str | None]
    seq: int | None


class NoInstruments:
    """A publish that no telemetry observes."""

    __slots__ = ("headers", "seq")

    def __init__(self, headers: Sequence[str | None]) -> None:
        self.headers = headers
        self.seq: int | None = None


class Instruments(Protocol):
    """The telemetry hooks. See `headrace.telemetry.instrumentation`.

    Attributes:
        survey_every: seconds between calls of `surveyed`, or None for no calls.
    """

    survey_every: float | None

    def publishing(self, stream: str, headers: Sequence[str | None]) -> AbstractContextManager[Sending]:
        """Enter around a publish. Takes the headers of its messages as JSON text, and returns the
        headers to send, which carry the trace."""

    def process(self, spec: ConsumerSpec, call: Call, *, batch: bool) -> Call:
        """Return the handler's call, measured and traced."""

    def leasing(self, spec: ConsumerSpec) -> AbstractContextManager[Callable[[Leased], Any]]:
        """Enter around a lease call. Call the returned function with the leased batch."""

    def settling(self, spec: ConsumerSpec, acked: int, failed: int, released: int) -> AbstractContextManager[None]:
        """Enter around a settle call, with the number of messages of each outcome."""

    def dead_lettered(self, spec: ConsumerSpec, message: Any, reason: str, error: BaseException) -> None:
        """Report that a message has become a dead letter."""

    def surveyed(self, consumers: Iterable[ConsumerInfo]) -> None:
        """Report the state in the store of this process's consumers."""
