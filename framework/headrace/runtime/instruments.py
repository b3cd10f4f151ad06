"""What telemetry may hook into. None of it is called when telemetry is off, and nothing of it once per message but what `process` wraps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from headrace.model.records import Batch as Leased
from headrace.model.records import ConsumerInfo
from headrace.model.specs import ConsumerSpec
from headrace.runtime.wiring import Call


class Sending(Protocol):
    """A publish that is being told of.

    Attributes:
        headers: of its messages, as JSON text, with the trace in them.
        seq: set it when it is known, if there is one message.
    """

    headers: Sequence[str | None]
    seq: int | None


class Untold:
    """A publish that nobody is told of."""

    __slots__ = ("headers", "seq")

    def __init__(self, headers: Sequence[str | None]) -> None:
        self.headers = headers
        self.seq: int | None = None


class Instruments(Protocol):
    """See `headrace.telemetry.instrumentation`.

    Attributes:
        survey_every: seconds between two `surveyed`; None if it isn't wanted.
    """

    survey_every: float | None

    def publishing(self, stream: str, headers: Sequence[str | None]) -> AbstractContextManager[Sending]:
        """Around a publish: takes the headers of its messages as JSON text, and gives those to send, which carry the trace."""

    def process(self, spec: ConsumerSpec, call: Call, *, batch: bool) -> Call:
        """The handler's call, measured and traced."""

    def leasing(self, spec: ConsumerSpec) -> AbstractContextManager[Callable[[Leased], Any]]:
        """Around a lease call, which tells what it brought."""

    def settling(self, spec: ConsumerSpec, acked: int, failed: int, released: int) -> AbstractContextManager[None]:
        """Around a settle call; how many messages had which outcome."""

    def surveyed(self, consumers: Iterable[ConsumerInfo]) -> None:
        """How this process's consumers are in the store."""
