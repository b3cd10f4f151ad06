"""The state of change data capture: sources, their backfills, and the changes that could not be captured."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

CaptureState = Literal["new", "starting", "running", "waiting", "stopped", "paused", "unattended"]
"""The state of a capture.

- `new`: no process has captured it yet.
- `starting`: a process is about to capture it.
- `running`: changes become messages as they are committed.
- `waiting`: it waits for a temporary problem to pass: a database that can't be reached, or a stream that is full.
- `stopped`: something has to be fixed first, see `reason` and `mend`. It is tried again automatically, unless its transform
  did not return. Then it waits until it is resumed.
- `paused`: it was paused, until it is resumed.
- `unattended`: no process captures it, because no process that could is running.
"""

BackfillState = Literal["queued", "running", "done", "cancelled", "failed"]

BackfillKind = Literal["backfill", "verification", "repair"]
"""What is done with the rows of a table.

- `backfill`: all are published.
- `verification`: they are compared with the stream.
- `repair`: they are compared, and differences are corrected in the stream.
"""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is not what its row would be. `kind` is the attribute of `Differences` that counts it."""

    kind: Literal["differs", "missing", "extra"]
    key: str


class Differences(msgspec.Struct, kw_only=True):
    """The result of comparing a table with its stream."""

    differs: int = 0
    """Rows whose message is not what it would be now."""
    missing: int = 0
    """Rows without a message."""
    extra: int = 0
    """Messages whose row is gone, or does not meet the source's condition."""
    kept: int = 0
    """The same in a source with `deletes="ignore"`, where they stay. These are not differences."""
    unchecked: int = 0
    """Rows and messages that could not be compared, since a transform failed or the key can't be looked up."""
    examples: list[Difference] = []
    """The first differences, at most 20."""

    @property
    def count(self) -> int:
        """The number of differences."""
        return self.differs + self.missing + self.extra

    def add(self, kind: Literal["differs", "missing", "extra"], keys: Sequence[str]) -> None:
        """Count differences."""
        setattr(self, kind, getattr(self, kind) + len(keys))
        self.examples += [Difference(kind=kind, key=key) for key in keys[: MOST_EXAMPLES - len(self.examples)]]


MOST_EXAMPLES = 20
"""Number of differences that are kept as examples."""


class CaptureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The report that a capturing process writes every few seconds."""

    held_back: int | None = None
    """Bytes of WAL that the server keeps for the slot."""
    wal_status: str | None = None
    """The slot's `wal_status` in `pg_replication_slots`: reserved, extended, unreserved or lost."""
    safe_wal_size: int | None = None
    """Bytes of WAL that may still be written before the slot is lost. None without max_slot_wal_keep_size."""
    behind: int | None = None
    """Bytes of WAL between the server's write position and the captured position."""
    rate: float = 0.0
    """Changes per second, over the last few seconds."""
    committed_at: datetime | None = None
    """When the newest captured transaction was committed."""
    alarm: str | None = None
    """What is wrong with the slot, if anything, and what to do."""


class CaptureInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a capture."""

    state: CaptureState
    reason: str | None = None
    mend: str | None = None
    """The statement or command that fixes it."""
    since: datetime | None = None
    paused_at: datetime | None = None
    holder: str | None = None
    """The id of the capturing process, see `WorkerInfo`."""
    position: str | None = None
    """A location in the server's WAL, such as `0/16B3748`. Everything that was committed up to it is in the stream."""
    captured: int = 0
    """The number of changes since the source was created."""
    system_id: str | None = None
    timeline: int | None = None
    failures: int = 0
    """The number of changes that could not be made into messages, counted up to 10,000."""
    facts: CaptureFacts | None = None
    told_at: datetime | None = None
    shared_slot_id: str | None = None
    """The id of the slot that it shares with other sources. The slot's name on the server ends with the first 8 digits."""


class BackfillInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A backfill: the existing rows of a table are read, in chunks, and published, or compared with the stream."""

    id: str
    source: str
    kind: BackfillKind = "backfill"
    table: str
    where: Any = None
    """The condition that selects rows, as JSON. None for all rows."""
    rate: int | None = None
    """The maximum number of rows per second."""
    state: BackfillState
    reason: str | None = None
    total: int | None = None
    """The number of rows, as estimated at the start."""
    read: int = 0
    published: int = 0
    """The number of rows that became messages. Rows with a newer captured change are left out."""
    created_at: datetime
    started_at: datetime | None = None
    updated_at: datetime | None = None
    finished_at: datetime | None = None
    differences: Differences | None = None
    """The result of a comparison so far."""

    @property
    def place(self) -> str:
        """Its place in the list of backfills, from which the list can be continued."""
        return f"{self.created_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z_{self.id}"

    @property
    def share(self) -> float | None:
        """The progress, from 0 to 1. None while it is unknown."""
        if self.state == "done":
            return 1.0
        return min(self.read / self.total, 0.99) if self.total else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds that remain at the average speed so far. None while it is unknown."""
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


class Backfill(BackfillInfo, frozen=True, kw_only=True):
    """A running or ended backfill or verification of one table."""

    done: Annotated[float | None, Meta(description="How much of it is done, from 0 to 1, as estimated.")]
    time_left: Annotated[float | None, Meta(description="Seconds, as estimated.")]

    @classmethod
    def of(cls, info: BackfillInfo) -> Backfill:
        """Add to a backfill how much of it is done."""
        return cls(**msgspec.structs.asdict(info), done=info.share, time_left=info.seconds_left)


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
    """The result of one check of the command `check`.

    Attributes:
        what: the subject of the check in a few words, such as "wal_level".
        level: `ok` if it works, `warning` if it works less well than it could, `error` if it can't work.
        message: a sentence that describes the state and what it means.
        hint: the exact statement that fixes it. None if there is nothing to fix, or no statement does.
    """

    what: str
    level: Literal["ok", "warning", "error"]
    message: str
    hint: str | None = None
