"""What the store hands out: batches under a lease, dead letters, and the state of streams and consumers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class Batch(msgspec.Struct, frozen=True, gc=False):
    """What one lease call brought. The lists run in parallel; `data` and `headers` are JSON text.

    `lease_id` is None when there was nothing. `more`: another call right away may find more. `due_in`: seconds until a
    parked message or somebody's lease falls due next. `looked_at`: messages looked at above the cursor and in its holes.
    """

    lease_id: int | None
    seqs: list[int]
    attempts: list[int] | None
    keys: list[str]
    data: list[str]
    headers: list[str | None]
    created_at: list[datetime]
    looked_at: int
    more: bool
    due_in: float | None


class Lost(msgspec.Struct, frozen=True, gc=False):
    """A settle that changed nothing, because the lease was lost. `seq` is None for the whole lease."""

    lease_id: int
    seq: int | None


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    created_at: datetime
    first_seq: int | None
    last_seq: int | None
    messages: int
    """Estimated from the planner's statistics once the stream is large, and exact below 10,000."""
    size: int
    """Bytes on disk, indexes and large values included."""
    consumers: int


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    stream: str
    name: str
    settings: dict[str, Any]
    position: int
    """Every message up to here has been looked at, but for those that commit late."""
    lag: int
    """Sequence numbers above the position. Rolled back transactions leave gaps, so it is an upper bound."""
    in_flight: int
    owners: int
    parked: int
    blocked: int
    dead_letters: int
    holes: int
    """Ranges of sequence numbers that a late commit may still fill."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    seq: int
    key: str
    data: Any
    headers: dict[str, Any] | None
    created_at: datetime
    attempts: int
    reason: str
    error: str | None
    traceback: str | None
    blocks: bool
    died_at: datetime
