"""What telemetry may hook into. None of it is called when telemetry is off, and nothing of it once per message but what `process` wraps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from headrace.model.records import Batch as Leased
from headrace.model.specs import ConsumerSpec
from headrace.runtime.wiring import Call


class Instruments(Protocol):
    """See `headrace.telemetry`."""

    def publishing(
        self, stream: str, headers: Sequence[dict[str, Any] | None]
    ) -> AbstractContextManager[Sequence[dict[str, Any] | None]]:
        """Around a publish: takes the headers of its messages, and gives those to send, which carry the trace."""

    def process(self, spec: ConsumerSpec, call: Call, *, batch: bool) -> Call:
        """The handler's call, measured and traced."""

    def leasing(self, spec: ConsumerSpec, leased: Leased, began: float, ended: float) -> None:
        """A lease call that brought something; times are of `time.time()`."""

    def settling(self, spec: ConsumerSpec, acked: int, failed: int) -> AbstractContextManager[None]:
        """Around a settle call."""
