"""The results of operators' calls: searches, previews, jobs, and what webhooks and push consumers did lately."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from headrace.model.records import StoredMessage


class SearchStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a search through a stream."""

    messages: list[StoredMessage]
    """The messages that match, in the order in which they were found."""
    examined: int
    """The number of messages that the step examined."""
    position: int
    """Where the next step goes on: its `before`, or its `after` if the search goes upwards."""
    more: bool
    """Whether there may be more."""
    remaining: int
    """About how many messages are still to be examined."""


class SeekPreview(msgspec.Struct, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    """The effect of moving a consumer."""

    before: int
    """The position now."""
    after: int
    """The position that it would have."""
    again: int
    """The number of messages up to the position now that would be delivered again, those in flight and parked included."""
    again_exact: bool
    """Whether `again` is exact. If False, there were too many messages to examine, and it is estimated."""
    skipped: int
    """The number of messages that wait, and would not be delivered any more. 0 for a move back."""
    skipped_exact: bool
    """Whether `skipped` is exact. If False, it is estimated, or some may be published by transactions that are still open."""
    in_flight: int
    """The number of messages in flight in leases that would end. Acks of them would have no effect."""


JobKind = Literal["redrive", "purge"]
"""What a job does with dead letters."""

JobState = Literal["waiting", "running", "done", "failed", "cancelled"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job that redrives or purges dead letters in the background."""

    id: str
    """A UUID."""
    kind: JobKind
    stream: str
    consumer: str
    state: JobState
    total: int | None
    """The number of dead letters that matched when it was created. None if counting took too long."""
    done: int
    """The number of dead letters redriven or purged so far."""
    error: str | None
    """Why it failed."""
    created_at: datetime
    """Dead letters that died later are left alone."""
    created_by: str
    """The name of the token, or else the role in the database."""
    finished_at: datetime | None


class WebhookDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery to a webhook, without what it contained."""

    at: datetime
    accepted: bool
    status: int
    """The status of the response."""
    reason: str | None
    """Why it was refused, or why nothing was published."""
    bytes: int
    """The size of the body."""
    key: str | None
    """The key of the message. None if it was refused."""
    seq: int | None
    """The seq of the message. Only of a delivery with an id of the sender, as long as the stream remembers that."""
    remote: str | None
    """The address of the client, or of the proxy in front of the server."""


class PushAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of the endpoint of a push consumer."""

    at: datetime
    status: int | None
    """The status of the response. None without one."""
    ms: float
    """How long it took, in milliseconds."""
    error: str | None
    messages: int
    """The number of messages in the request."""


class PushBreaker(msgspec.Struct, frozen=True, kw_only=True):
    """The circuit breaker of a push consumer, of the server where it is the least closed."""

    state: Literal["closed", "open", "half-open"]
    until: datetime | None
    """When an open breaker tries a message, about. None unless it is open."""


class PushCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Messages since the servers that run now have started."""

    ok: int
    failed: int


class PushStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a push consumer."""

    url: str
    """The URL, as the caller may see it."""
    breaker: PushBreaker | None
    """None if no server runs it."""
    recent: list[PushAnswer]
    """The last answers of the endpoint, the newest first. A server records at most some of each second."""
    counts: PushCounts
