"""The history of a consumer: which messages it has completed."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

CompletionOutcome = Literal["acked", "expired", "dropped", "dead_letter", "cancelled"]
"""How a message was completed.

`expired`: its time to live was over before its handler began. `dropped`: its attempts were exhausted, and the consumer drops
such messages, or the message had left the stream. `cancelled`: its cancellation was requested while its process had it.
"""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in the history of a consumer: one completion of a message. A redelivered message has several."""

    seq: int
    at: datetime
    """When it was completed."""
    outcome: CompletionOutcome
    attempts: int
    """The number of the attempt that completed it."""
    seconds: float | None
    """How long the handler took. Of an ack by a client, the time since the delivery. Null if it was not measured."""
    process: str | None
    """The worker process, as `host:pid`. Null for a client."""

    @property
    def took(self) -> str:
        """How long it took, as text. Empty if that was not measured."""
        return "" if self.seconds is None else f"{self.seconds:,.3f} s"


class CompletionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of the history of a consumer, from the newest to the oldest."""

    completions: list[Completion]
    next: str | None = None
    """Given if there may be more: send it as `before`."""
