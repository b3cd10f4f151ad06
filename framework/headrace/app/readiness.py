"""Readiness: whether this process does its work, and if not, why. Judged without a query.

A consumer is ready while the database answers it. It queries every few seconds at least, for
messages, or for its settings while it has no room for more messages. It is not ready once its
queries have failed for longer than `MAX_UNANSWERED`. Outcomes of messages don't count. Failing handlers
or an open circuit breaker are reported, but they make no process unready, since another process
would do no better.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

MAX_UNANSWERED = 10.0
"""Seconds without an answer from the database after which a consumer is not ready. Most failovers take less."""


class ConsumerReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """Readiness of one consumer.

    Attributes:
        ready: whether it leases messages, or would if it had room and were not paused.
        reason: why it is not ready. Empty when it is ready.
        unanswered: seconds for which its queries have failed. None while the database answers it.
        leased: seconds since it last leased messages. None before the first lease.
        breaker: the state of its circuit breaker, such as "open". None if it has none.
        deleted: whether it was deleted while this process ran. The process no longer works on it.
            That does not make the process unready: an orchestrator should neither restart the
            service for it nor send its requests elsewhere.
    """

    ready: bool
    reason: str
    unanswered: float | None
    leased: float | None
    breaker: str | None
    deleted: bool = False


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Readiness of the process. True when it is ready. msgspec can encode it as JSON.

    Attributes:
        ready: whether everything is ready.
        reasons: why it is not, one sentence each.
        database: whether the database answers at least one consumer. The schema is correct in any
            running app, since the start checks it.
        draining: whether it was asked to stop. Then it is not ready, and nothing is wrong.
        consumers: each consumer's readiness, by `stream:name`.
    """

    ready: bool
    reasons: tuple[str, ...]
    database: bool
    draining: bool
    consumers: Mapping[str, ConsumerReadiness]

    def __bool__(self) -> bool:
        return self.ready


class ConsumerState(msgspec.Struct, frozen=True, kw_only=True):
    """The observations of a consumer. See `ConsumerReadiness`."""

    unanswered: float | None
    leased: float | None
    breaker: str | None
    deleted: bool = False


def assess(states: Mapping[str, ConsumerState], *, draining: bool, max_unanswered: float = MAX_UNANSWERED) -> Readiness:
    """Judge the readiness of a process from what its consumers have observed."""
    consumers = {name: _consumer_readiness(state, max_unanswered) for name, state in states.items()}
    reasons = [f"{name}: {one.reason}." for name, one in consumers.items() if not one.ready]
    if draining:
        reasons.insert(0, "The process is stopping. It finishes its leased messages and leases no others.")
    return Readiness(
        ready=not reasons,
        reasons=tuple(reasons),
        database=not consumers or any(one.ready for one in consumers.values()),
        draining=draining,
        consumers=consumers,
    )


def _consumer_readiness(state: ConsumerState, max_unanswered: float) -> ConsumerReadiness:
    unanswered_too_long = state.unanswered is not None and state.unanswered > max_unanswered and not state.deleted
    reason = f"the database has not answered for {state.unanswered:.0f} s" if unanswered_too_long else ""
    return ConsumerReadiness(
        ready=not unanswered_too_long,
        reason=reason,
        unanswered=None if state.deleted else state.unanswered,
        leased=state.leased,
        breaker=state.breaker,
        deleted=state.deleted,
    )


NOT_RUNNING = Readiness(ready=False, reasons=("The app is not running.",), database=False, draining=False, consumers={})
