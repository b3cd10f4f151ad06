"""The hooks for telemetry. None is called when telemetry is off. Only the calls that `process` and `Sample.choose`
return run once per message."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
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


class Sample(Protocol):
    """The messages of one consumer that telemetry observes, if it does not observe all."""

    def choose(self, headers: Sequence[str | None]) -> Iterable[tuple[int, Call]]:
        """Choose among messages with these headers that are leased together. Returns their places, each with the call of
        its handler."""

    def enter_actor(self, in_work: Callable[[], Any]) -> None:
        """Called first in each actor. `in_work` returns the message that it works on."""


class Instruments(Protocol):
    """The telemetry hooks. See `headrace.telemetry.instrumentation`.

    Attributes:
        survey_every: seconds between calls of `surveyed`, or None for no calls.
    """

    survey_every: float | None

    def consumer_begins(self, spec: ConsumerSpec) -> None:
        """Called when a pipeline of a consumer is made."""

    def consumer_deleted(self, spec: ConsumerSpec) -> None:
        """Called when the consumer of the pipeline that was made with this spec turned out to be deleted."""

    def publishing(self, stream: str, headers: Sequence[str | None]) -> AbstractContextManager[Sending]:
        """Enter around a publish. Takes the headers of its messages as JSON text, and returns the
        headers to send, which carry the trace."""

    def process(self, spec: ConsumerSpec, call: Call, *, batch: bool) -> Call:
        """Return the handler's call, measured and traced."""

    def sample(self, spec: ConsumerSpec, call: Call) -> Sample | None:
        """Return the sample that suffices of a consumer that handles single messages. None if `process` must be used."""

    def leasing(self, spec: ConsumerSpec) -> AbstractContextManager[Callable[[Leased], Any]]:
        """Enter around a lease call. Call the returned function with the leased batch."""

    def settling(self, spec: ConsumerSpec, acked: int, failed: int, released: int) -> AbstractContextManager[None]:
        """Enter around a settle call, with the number of messages of each outcome."""

    def dead_lettered(self, spec: ConsumerSpec, message: Any, reason: str, error: BaseException) -> None:
        """Report that a message has become a dead letter."""

    def published(self) -> Collection[str]:
        """Return the names of the streams that this process has published to, and that are not known to be deleted."""

    def surveyed(self, consumers: Iterable[ConsumerInfo], deleted: Iterable[str]) -> None:
        """Report the state in the store of this process's consumers, and which of the `published` streams are deleted."""
