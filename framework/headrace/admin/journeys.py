"""The journey of a message: what became of it in each consumer, in words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace import store
from headrace.admin.base import Base
from headrace.admin.validation import check_limit, check_seq
from headrace.model.records import StoredMessage
from headrace.model.watching.completions import Completion, CompletionOutcome
from headrace.model.watching.journeys import Journey, JourneyStop, LeaseOwner, trace_of
from headrace.store import ConsumerPlace
from headrace.store.messages.peek import decoded

MAX_STOPS = 1000
"""Largest number of consumers of one answer."""


async def read_journey(
    admin: Base,
    stream: str,
    seq: int,
    *,
    limit: int = MAX_STOPS,
    after: str | None = None,
    now: datetime | None = None,
) -> Journey | None:
    """Return the journey of a message, see `Admin.journey`."""
    check_seq("seq", seq)
    check_limit(limit)
    limit = min(limit, MAX_STOPS)
    async with admin._bounded(None, stream) as executor:
        found = await store.message_by_seq(executor, stream, seq, raw=admin._contents.raw, now=now)
        key = None if found.message is None else found.message.key
        places = await store.journey(executor, stream, seq, key, limit=limit + 1, after=after, now=now)
    if found.message is None and found.erased is None and not places:
        return None
    headers = None if found.message is None else _headers(found.message)
    return Journey(
        seq=seq,
        message=found.message,
        trace=trace_of(headers),
        gone=None if found.message is not None else "removed" if found.erased is None else "erased",
        erased=found.erased,
        consumers=[stop_of(place, found.message, found.at) for place in places[:limit]],
        next=places[limit - 1].consumer if len(places) > limit else None,
    )


def _headers(message: StoredMessage) -> dict[str, Any] | None:
    headers: Any = message.headers
    found = decoded(bytes(headers).decode()) if isinstance(headers, msgspec.Raw) else headers
    return found if isinstance(found, dict) else None


def stop_of(place: ConsumerPlace, message: StoredMessage | None, now: datetime) -> JourneyStop:
    """Say what became of a message in a consumer. `message` is None if it is no longer in the stream."""
    stop = JourneyStop(
        consumer=place.consumer,
        consumer_id=str(place.consumer_id),
        state="waiting",
        reason="",
        attempts=place.attempts,
        behind=place.head,
        history=place.completed,
        cancelled_at=place.requested_at,
        cancelled_by=place.requested_by,
    )
    if place.requested_at is not None and _is_cancelled(place):
        reason = f"It was cancelled at {_text(place.requested_at)} by {place.requested_by}."
        return _became(stop, "cancelled", reason, attempts=None, behind=None)
    match place.place:
        case "lease":
            return _in_flight(stop, place, now)
        case "ack":
            reason = "A transaction has acked it together with its effects. Its lease is not settled yet."
            return _became(stop, "acked", reason, acked_by=now, behind=None)
        case "letter":
            return _dead(stop, place)
        case "parked" | "tail" | "ahead" | "hole":
            return _unsettled(stop, place, message, now)
        case "replay":
            return _became(stop, "replaying", "A replay delivers it again, before new messages.")
    return _passed(stop, place, message, now)


def _is_cancelled(place: ConsumerPlace) -> bool:
    """Whether a message whose cancellation was requested is done without being handled, or will be."""
    if place.outcome is None:
        return place.place in ("ahead", "hole") or (place.place == "passed" and not place.was_at_work)
    return place.place == "passed" and place.outcome == "cancelled"


def _became(stop: JourneyStop, state: str, reason: str, **changes: Any) -> JourneyStop:
    return msgspec.structs.replace(stop, state=state, reason=reason, **changes)


def _in_flight(stop: JourneyStop, place: ConsumerPlace, now: datetime) -> JourneyStop:
    owner = None
    if place.process is not None:
        owner = LeaseOwner(process_id=str(place.process), host=place.host, pid=place.pid)
        reason = "The process has it."
    else:
        reason = "An HTTP client has it, or a process that has not reported it yet."
    if place.until is not None and place.until <= now:
        reason += " Its lease has expired, so the next lease call takes it back."
    if place.requested_at is not None and place.outcome is None:
        reason += (
            f" Its cancellation was requested at {_text(place.requested_at)}, and counts once its handler has ended."
        )
    if place.head is not None:
        reason += f" It waits there for the message {place.head} of its key."
    return _became(stop, "in_flight", reason, attempt=place.attempts, lease_until=place.until, owner=owner)


_DEATHS = {
    "exhausted": "Its attempts are exhausted.",
    "rejected": "Its handler rejected it.",
    "invalid": "Its payload is invalid.",
}


def _dead(stop: JourneyStop, place: ConsumerPlace) -> JourneyStop:
    reason = _DEATHS[place.death or "exhausted"]
    if place.blocks:
        reason += " It blocks its key until it is redriven or purged."
    error = {"error": place.error, "error_type": place.error_type, "died_at": place.since}
    return _became(stop, "blocked" if place.blocks else "dead_letter", reason, behind=None, **error)


def _unsettled(stop: JourneyStop, place: ConsumerPlace, message: StoredMessage | None, now: datetime) -> JourneyStop:
    expires = _expiry(message)
    if expires is not None and expires <= now:
        reason = f"It expired at {_text(expires)}, before it was delivered or done."
        return _became(stop, "skipped", reason, behind=None)
    if place.head_place == "letter":
        return _became(stop, "blocked", f"The dead letter {place.head} blocks its key.")
    paused = "" if place.paused_until is None else " The consumer is paused."
    if place.place == "tail":
        return _became(stop, "parked", _behind(place, "an earlier message of its key") + paused)
    if place.place == "parked":
        if place.head is not None:
            reason = _behind(place, "")
        elif place.until is not None and place.until > now:
            reason = "It is delivered again once it is due."
        else:
            reason = "It is due."
        if place.failed_at is not None:
            reason += f" Its last attempt failed at {_text(place.failed_at)}."
        failure = {name: getattr(place, name) for name in ("error", "error_type", "failed_at", "failed_by")}
        return _became(stop, "parked", reason + paused, until=place.until, **failure)
    if place.place == "hole":
        reason = f"It was committed after the position, {place.position}, had passed it. It is delivered with the next messages."
    else:
        reason = f"The position, {place.position}, has not reached it."
    if place.head is not None:
        reason += f" {_behind(place, '')}"
    return _became(stop, "waiting", reason + paused)


def _behind(place: ConsumerPlace, otherwise: str) -> str:
    if place.head is None:
        return f"It waits for {otherwise}."
    state = "is in flight" if place.head_place == "lease" else "is parked"
    return f"It waits for the message {place.head} of its key, which {state}."


def _passed(stop: JourneyStop, place: ConsumerPlace, message: StoredMessage | None, now: datetime) -> JourneyStop:
    """A message that nothing of the consumer holds."""
    stop = msgspec.structs.replace(stop, attempts=None, behind=None)
    if stop.history:
        last = stop.history[0]
        state = {"expired": "skipped", "cancelled": "cancelled"}.get(last.outcome, "acked")
        acked = last.at if last.outcome == "acked" else None
        return _became(stop, state, completed(last), attempts=last.attempts, acked_by=acked)
    if place.gap_at is not None:
        gap = f"{place.gap_lower} to {(place.gap_upper or 0) - 1}"
        reason = f"Retention removed messages from {gap} before they were delivered, at {_text(place.gap_at)}."
        return _became(stop, "skipped", reason)
    if place.wanted is False:
        what = "Its key does not match the filters" if not place.by_key else "It does not meet the condition"
        return _became(stop, "filtered", f"{what} of the consumer, as they are now.")
    if place.requested_at is not None:
        reason = f"Its handler was done before the cancellation that was requested at {_text(place.requested_at)}."
        return _became(stop, "acked", reason)
    before = None if message is None else _before_start(place, message)
    if before is not None:
        reason = f"{before} It was delivered only if the consumer was moved back to it later, which is not remembered."
        return _became(stop, "skipped", reason)
    others = ["was dropped", "was passed over by a seek"]
    expires = _expiry(message)
    if expires is not None and expires <= now:
        others.insert(0, f"expired at {_text(expires)} before it was delivered")
    if place.deliver_policy == "last_per_key" and message is not None and message.created_at < place.began_at:
        others.insert(0, "was not the last one of its key when the consumer began")
    passed = f"The position, {place.position}, has passed it, and nothing holds it."
    return _became(stop, "acked", f"{passed} It was acked, or it {', or '.join(others)}. When is not remembered.")


_COMPLETED: dict[CompletionOutcome, str] = {
    "acked": "It was acked at {at} by {by}{took}.",
    "expired": "It expired before its handler began, as {by} noticed at {at}.",
    "dropped": "It was dropped at {at} by {by} after its last attempt{took}.",
    "dead_letter": "It became a dead letter at {at} by {by}{took}, and was purged or redriven since.",
    "cancelled": "It was cancelled while {by} had it, which ended at {at}{took}.",
}


def completed(one: Completion) -> str:
    """Say how a message was completed, as a sentence."""
    took = one.took and f", after {one.took}"
    return _COMPLETED[one.outcome].format(at=_text(one.at), by=one.process or "a client", took=took)


def _before_start(place: ConsumerPlace, message: StoredMessage) -> str | None:
    """Say why the message precedes the start of the consumer. None if it does not."""
    match place.deliver_policy:
        case "new" if message.created_at < place.began_at:
            return f"It was published before the consumer was created, at {_text(place.began_at)}."
        case "by_start_seq" if place.start_seq is not None and message.seq < place.start_seq:
            return f"The consumer began at the seq {place.start_seq}."
        case "by_start_time" if place.start_time is not None and message.created_at < place.start_time:
            return f"The consumer began at {_text(place.start_time)}."
    return None


def _expiry(message: StoredMessage | None) -> datetime | None:
    return None if message is None else message.expires_at


def _text(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
