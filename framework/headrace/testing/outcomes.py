"""The outcome of each delivery, as recorded in the in-flight tracker of the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from headrace.flow.in_flight import InFlightTracker
from headrace.flow.lease import Lease, Parcel
from headrace.model.errors import InvalidData
from headrace.model.outcomes import Failure
from headrace.model.records import Lost
from headrace.model.specs import ConsumerSpec
from headrace.runtime.messages.message import Message

Kind = Literal[
    "acked", "expired", "cancelled", "retried", "exhausted", "rejected", "snoozed", "released", "lost", "crashed"
]
"""The kind of an outcome.

- `acked`: handled.
- `expired`: leased, and not handled, since its time to live passed before.
- `cancelled`: an operator has cancelled it while it was leased.
- `retried`: failed, and delivered again later.
- `exhausted`: failed for the last time.
- `rejected`: rejected by the handler, or the payload has the wrong type.
- `snoozed`: put off by the handler, without counting the attempt.
- `released`: returned unhandled, without counting the attempt.
- `lost`: the lease was lost, and the outcome had no effect.
- `crashed`: the worker died during the delivery, because of it or of another one.
"""


class Outcome(msgspec.Struct):
    """The outcome of one delivery of a message to a consumer.

    Attributes:
        stream: the name of the stream.
        consumer: the name of the consumer.
        key: the message's key.
        seq: its sequence number.
        attempt: which delivery this is, from 1.
        kind: see `Kind`.
        after: seconds until the message is delivered again, if it was retried or snoozed.
        error: the error, if the delivery failed.
    """

    stream: str
    consumer: str
    key: str
    seq: int
    attempt: int
    kind: Kind
    after: float | None = None
    error: str | None = None

    def __str__(self) -> str:
        after = "" if self.after is None else f" after {self.after:.3g} s"
        error_text = f": {self.error}" if self.error else ""
        return f"{self.consumer}: {self.key} (seq {self.seq}, attempt {self.attempt}) {self.kind}{after}{error_text}"


class Record:
    """All outcomes in their order, and the handler errors that the test has not taken yet."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.errors: list[Exception] = []

    def note(self, message: Message, kind: Kind, failure: Failure | None = None) -> Outcome:
        """Record the outcome of a delivery."""
        outcome = Outcome(message.stream, message.consumer, message.key, message.seq, message.attempt, kind)
        if failure is not None:
            outcome.error = failure.error
            outcome.after = (failure.delay or 0.0) if kind in ("retried", "snoozed") else None
        self.outcomes.append(outcome)
        return outcome

    def take_errors(self) -> list[Exception]:
        """Return the errors since the previous call."""
        errors, self.errors = self.errors, []
        return errors


class WatchedTracker(InFlightTracker[Message]):
    """An in-flight tracker that records outcomes. It ignores what the parts of a crashed worker still report."""

    def __init__(self, spec: ConsumerSpec, record: Record, dead: Callable[[], bool]) -> None:
        super().__init__()
        self._spec = spec
        self._record = record
        self._dead = dead
        self._unsettled: dict[int, dict[int, Outcome]] = {}  # by lease and seq

    def ack(self, message: Message) -> None:
        self._note(message, "acked")
        super().ack(message)

    def expire(self, message: Message) -> None:
        self._note(message, "expired")
        super().expire(message)

    def cancel(self, message: Message) -> None:
        self._note(message, "cancelled")
        super().cancel(message)

    def fail(self, message: Message, failure: Failure) -> None:
        self._note(message, self._kind(message, failure), failure)
        if failure.kind == "invalid" and not self._dead():
            self._record.errors.append(InvalidData(f"{message.key} (seq {message.seq}): {failure.error}"))
        super().fail(message, failure)

    def lose(self, lease: Lease, hold: int | None = None) -> None:
        for outcome in self._unsettled.pop(lease.id, {}).values():  # a hold has another id
            outcome.kind = "lost"
        super().lose(lease, hold)

    def settled(self, parcel: Parcel, lost: Iterable[Lost]) -> list[Lease]:
        lost = list(lost)
        gone = {(item.lease_id, item.seq) for item in lost}
        settlement = parcel.settlement
        for lease_id, seq in zip(settlement.leases, settlement.seqs, strict=True):
            outcome = self._unsettled.get(lease_id, {}).pop(seq, None)
            if outcome is not None and not gone.isdisjoint({(lease_id, seq), (lease_id, None)}):
                outcome.kind = "lost"
        for lease in parcel.ending:
            for outcome in self._unsettled.pop(lease.id, {}).values():
                if lease.lost or (lease.id, None) in gone:
                    outcome.kind = "lost"
        return super().settled(parcel, lost)

    def _note(self, message: Message, kind: Kind, failure: Failure | None = None) -> None:
        if not self._dead():
            outcome = self._record.note(message, "lost" if message.lease.lost else kind, failure)
            self._unsettled.setdefault(message.lease.id, {})[message.seq] = outcome

    def _kind(self, message: Message, failure: Failure) -> Kind:
        match failure.kind:
            case "release":
                return "released" if failure.delay is None or failure.error is not None else "snoozed"
            case "retry":
                return "exhausted" if 0 < self._spec.max_deliver <= message.attempt else "retried"
        return "rejected"
