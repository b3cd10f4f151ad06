"""What the store hands out: batches under a lease, dead letters, and the state of streams and consumers."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from headrace.model.capture import BackfillInfo
from headrace.model.sources import SourceInfo


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
    version: int = 0
    """Of the consumer's settings: it rises when they change."""
    crashes: list[int] | None = None
    """How often each was held by a worker that died, as `headrace.expire` counts it; None when none was."""
    lease_ids: list[int] | None = None
    """Of the shares in which it was dealt out, in their order; None when it is one lease."""
    history: UUID | None = None
    """The identity of the history that it was read from. After a crash, a failover, a restore or a restart it is another one, and contents that
    are remembered by their seq may be out of date. None only when there is nothing."""
    timeline: UUID | None = None
    """The identity of the timeline that it was leased in. A crash, a failover or a restore begins another one, an orderly restart does not. What
    was committed last may have been taken back then: leases of another timeline are void. None only when there is nothing."""
    busy: bool = False
    """Nothing was looked at, since several others are at it; they will find what there is now. Ask again in `due_in` seconds."""


class Lost(msgspec.Struct, frozen=True, gc=False):
    """A settle that changed nothing.

    Attributes:
        lease_id: the lease that it named.
        seq: the message, or None for everything that the lease held.
        gone: whether the lease was lost. Otherwise the message alone was settled before, for example by a transaction.
    """

    lease_id: int
    seq: int | None
    gone: bool = True


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream is. Its settings are explained at `StreamSpec`."""

    id: str
    """A UUID, by which the HTTP API knows it as well as by its name."""
    name: str
    created_at: datetime
    updated_at: datetime
    retention: str
    retain_up_to: float | None
    retain_at_least: float | None
    max_storage: int | None
    one_message_per_key: bool
    dedupe: bool
    tombstones: bool
    dedupe_window: float
    first_seq: int | None
    last_seq: int | None
    messages: int
    """Estimated from the planner's statistics once the stream is large, and exact below 10,000."""
    size: int
    """Bytes on disk, indexes and large values included."""
    segments: int
    consumers: int
    scheduled: int
    """Messages that are to be published later."""
    next_scheduled: datetime | None
    full: bool
    """Publishing is refused: `max_storage` is reached, and what is held must still be kept."""


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a consumer is. What has grown large is counted up to a million."""

    id: str
    """A UUID, by which the HTTP API knows it as well as by its name."""
    stream: str
    stream_id: str
    name: str
    created_at: datetime
    updated_at: datetime
    settings: dict[str, Any]
    """As at `ConsumerSpec`, `where` as text; and `version`, which rises whenever they change. A push consumer's secret is not told."""
    position: int
    """Every message up to here has been looked at, but for those that commit late."""
    last_seq: int
    """The stream's last message; 0 for none."""
    lag: int
    """Sequence numbers above the position. Rolled back transactions leave gaps, so it is an upper bound."""
    num_pending: int
    """Messages that wait to be leased: those above the position that match, the parked ones, and those to be replayed."""
    num_pending_exact: bool
    """False: there were too many to look at them all, and it is at least so many."""
    num_ack_pending: int
    """Messages that are leased and not settled."""
    owners: int
    parked: int
    blocked: int
    replaying: int
    """Messages that a replay, or the policy `last_per_key`, has still to deliver."""
    dead_letters: int
    holes: int
    """Ranges of sequence numbers that a late commit may still fill."""
    oldest_unacked_at: datetime | None
    """When the lowest message was published that is not settled yet."""
    paused_until: datetime | None
    """`datetime.max`, in UTC, until somebody resumes it."""
    missed: int
    """Messages that retention removed before the consumer got them, in all."""
    last_gap: tuple[int, int, datetime] | None
    """The last time that happened: from this seq, to before that one, and when."""

    @property
    def in_flight(self) -> int:
        """The same as `num_ack_pending`."""
        return self.num_ack_pending


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the stream holds it."""

    seq: int
    key: str
    data: Any
    headers: dict[str, Any] | None
    created_at: datetime


class PeekedMessage(StoredMessage, frozen=True, kw_only=True):
    """A message that a consumer is at, or comes to next."""

    state: Literal["in_flight", "parked", "blocked", "next"]
    attempts: int
    """Deliveries so far that counted, the one in flight included."""
    owner: str | None
    """Who has it, if it is in flight: a UUID ..."""
    lease_id: int | None
    """... by which lease ..."""
    held: int | None
    """... of how many messages by now."""
    until: datetime | None
    """When the lease ends; or when a parked message is due, None for now."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a consumer stands with a message."""

    consumer_id: str
    consumer: str
    """Its name."""
    state: Literal["in_flight", "parked", "blocked", "replaying", "pending", "dead_letter", "filtered", "acked"]
    """`pending`: not reached yet; `filtered`: it doesn't want it; `acked`: done, or dropped, or there before the consumer began."""
    attempts: int | None
    """Deliveries so far that counted, the one in flight included; None where nobody remembers."""
    until: datetime | None
    """When the lease ends; or when a parked message is due, None for now."""
    owner: str | None
    """Who has it, if it is in flight: a UUID."""


class BlockedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that waits for a person: redrive or purge its dead letter."""

    key: str
    seq: int
    """Of the dead letter that blocks it, the first one if there are several."""
    since: datetime
    waiting: int
    """How many messages of the key wait behind it."""
    error: str | None


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A message under a lease of its own."""

    ack_id: str
    """To ack or nack it by; it names the lease and the seq."""
    seq: int
    key: str
    data: Any
    headers: dict[str, Any] | None
    created_at: datetime
    attempt: int
    """1 for the first."""


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


class ConsumerAtWork(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer in one process, as the process tells it."""

    stream: str
    name: str
    actors: int = 0
    busy: int = 0
    reason: str = ""
    """Why there are so many actors: the governor's last decision."""
    rate: float | None = None
    """Messages that were handled a second, well or not, since the process told before; None the first time."""
    latency: float | None = None
    """Seconds that a message takes, as the governor measured last; None while it has not."""
    leased: int = 0
    """Messages that the process has under a lease now ..."""
    waiting: int = 0
    """... and those of them that wait for an actor."""
    acked: int = 0
    failed: int = 0
    breaker: str | None = None
    """closed, open or half-open; None without a breaker."""


class ServerAtWork(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP side of one process."""

    requests: float | None = None
    """Requests answered a second since the process told before; None the first time."""
    in_flight: int = 0
    waiting: int = 0
    """Calls of `receive` that wait for a message."""


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a process tells of itself."""

    host: str
    pid: int
    kind: str
    """run, serve, or embedded in another program."""
    version: str
    started_at: datetime
    connections: int = 0
    """To the database, open now."""
    consumers: list[ConsumerAtWork] = []
    more_consumers: int = 0
    """Those that it has besides, and does not tell of."""
    server: ServerAtWork | None = None


class WorkerInfo(WorkerFacts, frozen=True, kw_only=True):
    """A process at work."""

    id: str
    seen_at: datetime
    gone: bool
    """It has not told of itself for 15 s, and did not say goodbye."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All there is, at a glance."""

    streams: list[StreamInfo]
    consumers: list[ConsumerInfo]
    """What is pending is not counted in them: `lag` says about how much that is."""
    workers: list[WorkerInfo]
    at: datetime
    """When that was, by the database's clock."""
    sources: list[SourceInfo] = []
    backfills: list[BackfillInfo] = []
    """Those that wait or are under way, the oldest first."""
