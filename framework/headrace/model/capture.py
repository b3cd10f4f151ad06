"""What there is to know about change capture: how a source is, its backfills, and what could not be captured."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

CaptureState = Literal["new", "starting", "running", "waiting", "stopped", "paused", "unattended"]
"""How a capture is.

- `new`: nobody has captured it yet, and `starting`: somebody is about to.
- `running`: changes become messages as they are committed.
- `waiting`: for something that passes: a database that can't be reached, a stream that is full.
- `stopped`: for something that has to be mended first, see `reason` and `mend`. It is tried again by itself.
- `paused`: by hand, until it is resumed.
- `unattended`: no process captures it: none runs that could.
"""

BackfillState = Literal["queued", "running", "done", "cancelled", "failed"]


class CaptureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that captures tells of it every few seconds."""

    held_back: int | None = None
    """Bytes of WAL that the server keeps for the slot."""
    wal_status: str | None = None
    """The slot's, as `pg_replication_slots` has it: reserved, extended, unreserved or lost."""
    safe_wal_size: int | None = None
    """Bytes of WAL that may still be written before the slot is lost; None without max_slot_wal_keep_size."""
    behind: int | None = None
    """Bytes of WAL between what the server has written and what is captured."""
    rate: float = 0.0
    """Changes a second, over the last few seconds."""
    committed_at: datetime | None = None
    """When the newest captured transaction was committed."""
    alarm: str | None = None
    """What is wrong with the slot, if anything is, and what to do."""


class CaptureInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a capture is."""

    state: CaptureState
    reason: str | None = None
    mend: str | None = None
    """The statement, or the command, that mends it."""
    since: datetime | None = None
    paused_at: datetime | None = None
    holder: str | None = None
    """The id of the process that captures, see `WorkerInfo`."""
    position: str | None = None
    """The place in the server's WAL, such as `0/16B3748`, up to which everything that was committed is in the stream."""
    captured: int = 0
    """Changes, since it was made."""
    system_id: str | None = None
    timeline: int | None = None
    failures: int = 0
    """Changes that could not be made into messages; at most 10,000 are counted."""
    facts: CaptureFacts | None = None
    told_at: datetime | None = None


class BackfillInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A table that is, or was, read from its first row on."""

    id: str
    source: str
    table: str
    where: Any = None
    """Which rows, as the JSON of a condition; None for all."""
    rate: int | None = None
    """Rows a second, at most."""
    state: BackfillState
    reason: str | None = None
    total: int | None = None
    """Rows, as estimated at its start."""
    read: int = 0
    published: int = 0
    """Without those of which a newer change was captured meanwhile."""
    created_at: datetime
    started_at: datetime | None = None
    updated_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def share(self) -> float | None:
        """How much of it is done, from 0 to 1; None while that can't be told."""
        if self.state == "done":
            return 1.0
        return min(self.read / self.total, 0.99) if self.total else None

    @property
    def seconds_left(self) -> float | None:
        """How long it will take at the speed that it has had so far; None while that can't be told."""
        if (
            self.state != "running"
            or not self.read
            or not self.total
            or self.started_at is None
            or self.updated_at is None
        ):
            return None
        took = (self.updated_at - self.started_at).total_seconds()
        return max(self.total - self.read, 0) * took / self.read


class FailedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that could not be made into a message."""

    id: int
    key: str | None
    data: Any
    """The change, before it was transformed."""
    error: str
    failed_at: datetime
    attempts: int = 1
    retry: bool
    """Whether it is about to be tried again."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that `check` looked at.

    Attributes:
        what: what was looked at, in a few words, such as "wal_level".
        level: `ok`; `warning`: it works, but less well than it could; `error`: it can't work.
        told: a sentence: how it is, and what that means.
        mend: the exact statement that mends it; None where there is nothing to mend, or no statement does it.
    """

    what: str
    level: Literal["ok", "warning", "error"]
    told: str
    mend: str | None = None
