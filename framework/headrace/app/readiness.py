"""Readiness: whether this process does its work, and if not, why; judged from what its consumers have seen, without asking the database.

A consumer is ready while the database answers it: it asks every few seconds at least, for messages, or for its settings while there is no
room for more. One that has asked in vain for longer than `PATIENCE` is not. What becomes of messages doesn't count: that handlers fail, or
that a circuit breaker is open, is told, but makes no process unready, since no other would fare better.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

PATIENCE = 10.0
"""Seconds without an answer from the database after which a consumer is not ready. A failover mostly takes less."""


class ConsumerReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """How one consumer is.

    Attributes:
        ready: whether it leases, or would if it had room, and weren't paused.
        reason: why not; empty when it is ready.
        unanswered: seconds since it has been asking the database in vain; None while it is answered.
        leased: seconds since it last leased messages; None if it has not yet.
        breaker: the state of its circuit breaker, such as "open"; None if it has none.
        deleted: whether it was deleted while this process ran, which works on it no longer. That makes no process unready: no restart
            of a service should follow from it, nor should its requests go elsewhere.
    """

    ready: bool
    reason: str
    unanswered: float | None
    leased: float | None
    breaker: str | None
    deleted: bool = False


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """How the process is. True when it is ready; msgspec can encode it as JSON.

    Attributes:
        ready: whether all is.
        reasons: why not, a sentence for each.
        database: whether the database answers some consumer at least. Its schema is right in any app that runs: that is seen to at start.
        draining: whether it was told to stop: it is not ready any more, and nothing is wrong.
        consumers: each one, by `stream:name`.
    """

    ready: bool
    reasons: tuple[str, ...]
    database: bool
    draining: bool
    consumers: Mapping[str, ConsumerReadiness]

    def __bool__(self) -> bool:
        return self.ready


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a consumer; see `ConsumerReadiness`."""

    unanswered: float | None
    leased: float | None
    breaker: str | None
    deleted: bool = False


def judge(sights: Mapping[str, Sight], *, draining: bool) -> Readiness:
    """How a process is, from what was seen of its consumers."""
    consumers = {name: _judged(sight) for name, sight in sights.items()}
    reasons = [f"{name}: {one.reason}." for name, one in consumers.items() if not one.ready]
    if draining:
        reasons.insert(0, "It was told to stop: it leases nothing more, and lets handlers finish.")
    return Readiness(
        ready=not reasons,
        reasons=tuple(reasons),
        database=not consumers or any(one.ready for one in consumers.values()),
        draining=draining,
        consumers=consumers,
    )


def _judged(sight: Sight) -> ConsumerReadiness:
    silent = sight.unanswered is not None and sight.unanswered > PATIENCE and not sight.deleted
    reason = f"it has been asking the database in vain for {sight.unanswered:.0f} s" if silent else ""
    return ConsumerReadiness(
        ready=not silent,
        reason=reason,
        unanswered=None if sight.deleted else sight.unanswered,
        leased=sight.leased,
        breaker=sight.breaker,
        deleted=sight.deleted,
    )


NOT_RUNNING = Readiness(ready=False, reasons=("The app is not running.",), database=False, draining=False, consumers={})
