"""The results of the store: leased batches, dead letters, and the state of streams, consumers and processes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from headrace.model.clock import Times


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The result of one lease call. The lists are parallel. `data` and `headers` are JSON text.

    `lease_id` is None if there was nothing to lease. `more` means that another call right away may find
    more. `due_in` is the number of seconds until the next parked message is due, the next lease of any
    owner expires, or a publisher in flight may have committed. `looked_at` is the number of messages that
    were examined above the cursor and in its holes.
    """

    lease_id: int | None
    seqs: list[int]
    attempts: list[int] | None
    keys: list[str]
    data: list[str]
    headers: list[str | None]
    created_at: Times
    looked_at: int
    more: bool
    due_in: float | None
    version: int = 0
    """The version of the consumer's settings. It rises when they change."""
    crashes: list[int] | None = None
    """How often each message was held by a worker that died, as counted by `headrace_internal.expire_leases`. None if no
    message was.
    """
    lease_ids: list[int] | None = None
    """The leases of the shares into which the messages were divided, in the order of the shares. None if there
    is one lease.
    """
    history: UUID | None = None
    """The identity of the database history from which the messages were read. A crash, a failover, a restore
    or a restart begins another history, and contents that were cached by seq may be out of date. None only
    if there is nothing.
    """
    timeline: UUID | None = None
    """The identity of the timeline in which the messages were leased. A crash, a failover or a restore begins
    another one, an orderly restart does not. The most recent commits may be lost then, so leases of another
    timeline are void. None only if there is nothing.
    """
    busy: bool = False
    """The call looked at nothing, because several other processes are leasing and will find what there is now.
    Call again in `due_in` seconds.
    """
    begun_at: datetime | None = None
    """The server's time when it got the call, from which it follows how long messages still live. The call may have
    waited since then, and messages may be younger. None if there is nothing."""


class Lost(msgspec.Struct, frozen=True, gc=False):
    """A settle that had no effect.

    Attributes:
        lease_id: the lease that the call named.
        seq: the message, or None for everything that the lease held.
        gone: whether the lease was lost. Otherwise only the message was settled before, for example by a
            transaction.
    """

    lease_id: int
    seq: int | None
    gone: bool = True


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a stream. `StreamSpec` describes the settings."""

    id: str
    """A UUID. The HTTP API accepts it as well as the name."""
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
    index_keys: bool
    first_seq: int | None
    last_seq: int | None
    messages: int
    """The number of messages. Exact below 10,000, and otherwise estimated from the planner's statistics."""
    size: int
    """Size on disk in bytes, including indexes and large values."""
    segments: int
    consumers: int
    scheduled: int
    """The number of messages that are scheduled to be published later."""
    next_scheduled: datetime | None
    full: bool
    """Publishing is refused: `max_storage` is reached, and the messages must still be kept."""
    database: str | None = None
    """The name of the database that it lives in, of those behind the server. None for the server's own."""


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a consumer. Counts stop at one million."""

    id: str
    """A UUID. The HTTP API accepts it as well as the name."""
    stream: str
    stream_id: str
    name: str
    created_at: datetime
    updated_at: datetime
    settings: dict[str, Any]
    """The settings of `ConsumerSpec`, with `where` as text, and `version`, which rises whenever they change.
    Without the secret of a push consumer.
    """
    position: int
    """The cursor. Every message up to here has been examined, except for those that commit late."""
    last_seq: int
    """The seq of the stream's last message, or 0 if it has none."""
    lag: int
    """The number of sequence numbers above the position. It is an upper bound, because rolled back
    transactions leave gaps.
    """
    num_pending: int
    """The number of messages that wait to be leased: matching messages above the position, parked messages,
    and messages to be replayed.
    """
    num_pending_exact: bool
    """Whether `num_pending` is exact. If False, there were too many messages to examine, and `num_pending` is
    a lower bound.
    """
    num_ack_pending: int
    """The number of messages that are leased and not settled."""
    owners: int
    parked: int
    blocked: int
    replaying: int
    """The number of messages that a replay, or the policy `last_per_key`, has still to deliver."""
    dead_letters: int
    holes: int
    """The number of ranges of sequence numbers that a late commit may still fill."""
    oldest_unacked_at: datetime | None
    """When the lowest unsettled message was published."""
    paused_until: datetime | None
    """When the pause ends. `datetime.max`, in UTC, if it lasts until the consumer is resumed."""
    missed: int
    """The total number of messages that retention removed before the consumer got them."""
    last_gap: tuple[int, int, datetime] | None
    """The last time that retention did so: from this seq, up to but not including that seq, and when."""

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
    expires_at: datetime | None = None
    """When it expires, if it has a time to live. Consumers that have not got it by then never get it."""


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """The trace of an erased message."""

    seq: int
    erased_at: datetime
    erased_by: str
    """The name of the token, or else the role in the database."""
    reason: str | None


class Cancellation(msgspec.Struct, frozen=True, kw_only=True):
    """The number of messages that a cancellation named, by what becomes of them."""

    cancelled: int
    """They were waiting, and will not be handled."""
    stopping: int = 0
    """They are at work. Their handlers are stopped."""
    not_waiting: int = 0
    """They are done, dead letters, not wanted by the consumer, or not in the stream."""


PEEK_STATES = ("in_flight", "parked", "blocked", "next")
"""The states of messages that a consumer is working on or reads next, in the order in which they are listed."""


class PeekedMessage(StoredMessage, frozen=True, kw_only=True):
    """A message that a consumer is working on or reads next."""

    state: Literal["in_flight", "parked", "blocked", "next"]
    attempts: int
    """The number of deliveries that counted, including the one in flight."""
    owner: str | None
    """The owner of the lease, a UUID, if the message is in flight."""
    lease_id: int | None
    """The id of the lease."""
    held: int | None
    """The number of messages that the lease holds now."""
    until: datetime | None
    """When the lease expires, or when a parked message is due. None means now."""
    failed_at: datetime | None = None
    """When its last attempt failed, if it is parked for a retry, or blocks its key. None if it was given back unstarted
    since."""
    error: str | None = None
    """The error of that attempt, at most 2,000 characters, and its type, as dead letters have them."""
    error_type: str | None = None
    failed_by: str | None = None
    """The worker process of that attempt, as `host:pid`. None if a client has nacked it, of a dead letter, or if it is not
    known."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a message for one consumer."""

    consumer_id: str
    consumer: str
    """The name of the consumer."""
    state: Literal["in_flight", "parked", "blocked", "replaying", "pending", "dead_letter", "filtered", "acked"]
    """`pending` means not reached yet, and `filtered` that the consumer doesn't read it. `acked` means
    handled, dropped, expired, or published before the consumer's start.
    """
    attempts: int | None
    """The number of deliveries that counted, including the one in flight. None if it is unknown."""
    until: datetime | None
    """When the lease expires, or when a parked message is due. None means now."""
    owner: str | None
    """The owner of the lease, a UUID, if the message is in flight."""
    failed_at: datetime | None = None
    """When the last attempt of a parked message failed, or when a dead letter died."""
    error: str | None = None
    error_type: str | None = None


class BlockedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A blocked key. It waits until you redrive or purge its dead letter."""

    key: str
    seq: int
    """The seq of the dead letter that blocks the key, the first one if there are several."""
    since: datetime
    waiting: int
    """The number of messages of the key that wait behind the dead letter."""
    error: str | None
    error_type: str | None = None


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A message under its own lease."""

    ack_id: str
    """The id with which to ack or nack the message. It contains the lease and the seq."""
    seq: int
    key: str
    data: Any
    headers: dict[str, Any] | None
    created_at: datetime
    attempt: int
    """The number of this attempt. The first is 1."""
    expires_at: datetime | None = None
    """When it expires, if it has a time to live."""


Death = Literal["exhausted", "rejected", "invalid"]
"""Why a message became a dead letter."""

GroupedBy = Literal["type", "error", "reason", "key", "hour", "day"]
"""The criterion by which dead letters are counted: the type of their error, its whole text, the reason, the key, or
the hour or day (UTC) of their death."""


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
    error_type: str | None = None
    """The type of the error, such as `ValueError` or `shop.errors.NoStock`. None if there was no exception, or an older
    release stored it."""


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of a consumer that have something in common."""

    value: str | None
    """Their common value, as stored. None if they have none, such as no type of an error."""
    messages: int
    """How many they are."""
    first_died_at: datetime
    last_died_at: datetime
    lowest: int
    """The lowest seq of them."""
    highest: int
    """The highest seq of them."""


class Percentiles(msgspec.Struct, frozen=True):
    """Durations in seconds: half of all messages take at most `p50`, 95 % at most `p95`, and 99 % at most `p99`."""

    p50: float
    p95: float
    p99: float


class ConsumerAtWork(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a consumer in one process, as the process reports it."""

    stream: str
    name: str
    actors: int = 0
    busy: int = 0
    reason: str = ""
    """Why the number of actors is what it is: the governor's last decision."""
    rate: float | None = None
    """Messages handled per second since the previous heartbeat, successes and failures. None in the first one."""
    latency: float | None = None
    """Seconds that a message takes, as the governor measured last. None before the first measurement."""
    durations: Percentiles | None = None
    """What calls of the handler took in the last minute, by a sample. None if none was measured."""
    leased: int = 0
    """The number of messages that the process has leased and not settled."""
    waiting: int = 0
    """The number of leased messages that wait for an actor."""
    acked: int = 0
    failed: int = 0
    breaker: str | None = None
    """closed, open or half-open. None without a breaker."""
    breaker_left: float | None = None
    """Seconds until an open breaker tries a message, at the time of the heartbeat. None unless it is open."""
    breaker_reason: str | None = None
    """The failure that opened the breaker. None while it is closed."""
    breaker_failures: int = 0
    """The number of failures in a row."""
    owner: str | None = None
    """The owner of its leases, a UUID. None from an older process."""


class ServerAtWork(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP server of one process."""

    requests: float | None = None
    """Requests answered per second since the previous heartbeat. None in the first one."""
    in_flight: int = 0
    waiting: int = 0
    """The number of `receive` calls that wait for a message."""


class WorkerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The heartbeat of a process: what it reports of itself."""

    host: str
    pid: int
    kind: str
    """run, serve, or embedded in another program. unreadable for a heartbeat that this version can't read."""
    version: str
    started_at: datetime
    revision: int = 1
    """The revision of the schema that its code knows."""
    connections: int = 0
    """The number of open connections to the database."""
    consumers: list[ConsumerAtWork] = []
    more_consumers: int = 0
    """The number of further consumers of the process, which the heartbeat leaves out."""
    server: ServerAtWork | None = None
    blocked: str | None = None
    """What blocks the event loop of the process, such as a handler that waits without `await`. None while nothing does."""


class WorkerInfo(WorkerFacts, frozen=True, kw_only=True):
    """A running process."""

    id: str
    seen_at: datetime
    gone: bool
    """The process has sent no heartbeat for 15 s, and did not sign off."""


class DatabaseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A further database behind a server."""

    name: str
    url_from: str
    """Where a server finds its URL: `env:NAME` or `file:/path`."""
    created_at: datetime


class DatabaseCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check of a further database. It can be used."""

    name: str
    revision: int
    """The revision of its schema. 0 for a database without one, which gets it from a server that may migrate."""
    streams: int
    conflicts: list[str] = []
    """Names of streams and sources, such as `stream orders`, that requests don't reach there, because another database has
    the name. The first 100 of each kind."""
