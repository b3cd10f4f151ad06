"""A message's journey: what became of it in each consumer of its stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from headrace.model.records import Erasure, StoredMessage
from headrace.model.watching.completions import Completion

JourneyState = Literal[
    "waiting", "in_flight", "parked", "blocked", "replaying", "acked", "cancelled", "dead_letter", "filtered", "skipped"
]
"""Where a message is in a consumer.

`waiting`: it will be delivered. `parked`: it was read and waits for a retry or for another message of its key. `blocked`: a
dead letter blocks its key. `acked`: it is done. `cancelled`: an operator has cancelled it, so it is done without being handled. `skipped`: it is not delivered, because it has expired, was removed, or
precedes the start of the consumer.
"""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The trace in which a message was published, from its header `traceparent`."""

    trace_id: str
    span_id: str


class LeaseOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a message."""

    process_id: str
    host: str | None
    pid: int | None


class JourneyStop(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of a message in one consumer. Facts that the engine does not remember are null, and `reason` says
    so."""

    consumer: str
    """The name of the consumer."""
    consumer_id: str
    state: JourneyState
    reason: str
    """What is known, and from where, as a sentence."""
    until: datetime | None = None
    """When a parked message is due. Null for now, or if that depends on another message."""
    owner: LeaseOwner | None = None
    """The process that has it in flight. Null for an HTTP client, and for a process that has not reported it."""
    lease_until: datetime | None = None
    attempt: int | None = None
    """The number of the attempt in flight."""
    attempts: int | None = None
    """Deliveries that counted, the one in flight included. Null if they are not known."""
    error: str | None = None
    """Of a dead letter, or of the last attempt of a parked message."""
    error_type: str | None = None
    failed_at: datetime | None = None
    """When the last attempt of a parked message failed. Null if it was given back unstarted since."""
    failed_by: str | None = None
    """The worker process of that attempt, as `host:pid`."""
    died_at: datetime | None = None
    behind: int | None = None
    """The seq of the message of the same key that it waits for."""
    cancelled_at: datetime | None = None
    """When its cancellation was requested. The state is another one while its handler is being stopped, and if that was done
    before."""
    cancelled_by: str | None = None
    acked_by: datetime | None = None
    """A time by which it was acked. Without a history the engine keeps none once a lease is settled, so it is null then."""
    history: list[Completion] = []
    """Its newest completions, at most 10, if the consumer has the setting `history`."""


class Journey(msgspec.Struct, frozen=True, kw_only=True):
    """A message, and what became of it in each consumer."""

    seq: int
    message: StoredMessage | None
    """Null if it is no longer in the stream."""
    trace: Trace | None
    gone: Literal["erased", "removed"] | None
    """Why it is no longer in the stream: it was erased, or retention or a newer message of its key has removed it."""
    erased: Erasure | None
    consumers: list[JourneyStop]
    """The consumers, by name. Of a message that is gone, only those that have it still, have missed it, or have it in their
    history."""
    next: str | None = None
    """The name of the last consumer, if there are more."""


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII)


def trace_of(headers: Mapping[str, Any] | None) -> Trace | None:
    """Return the trace of a message's headers, as W3C's Trace Context has it. None if there is none, or an invalid one."""
    given = None if headers is None else headers.get("traceparent")
    found = _TRACEPARENT.fullmatch(given) if isinstance(given, str) else None
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        return None
    return Trace(trace_id=found[1], span_id=found[2])
