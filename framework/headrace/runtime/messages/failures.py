"""Turns exceptions and other failures of handlers into `Failure` values that the store accepts."""

from __future__ import annotations

import random

from headrace.model.errors import LeaseLost
from headrace.model.outcomes import RELEASE, Failure, Kind, Reject, Release, Retry, Snooze, Unfit, deciding
from headrace.model.specs import Backoff
from headrace.model.text.error_text import error_text, error_type, storable, text_of

MAX_DELAY = 10 * 366 * 86_400.0
"""Longest delay of a retry in seconds. Postgres timestamps end a few hundred thousand years from now."""


def failure_of(error: BaseException, attempt: int, backoff: Backoff) -> Failure:
    """Return the failure for an exception of a handler, or for a `Retry` or `Reject` that it returned."""
    error = deciding(error)
    if isinstance(error, LeaseLost):
        return RELEASE  # this process may not settle it any more
    if isinstance(error, Release):
        return RELEASE if error.after is None else Failure("release", min(error.after, MAX_DELAY), text_of(error))
    if isinstance(error, Snooze):
        return snoozed(error.after or 0.0)
    if isinstance(error, Reject):
        return _failure("invalid" if isinstance(error, Unfit) else "reject", None, error)
    delay = error.after if isinstance(error, Retry) else None
    return _failure("retry", _delay(delay, attempt, backoff), error)


def nacked(delay: float | None, attempt: int, backoff: Backoff) -> Failure:
    """Return the failure for a nack by the handler. Without a delay the backoff decides."""
    return _failure("retry", _delay(delay, attempt, backoff), Retry("nacked by the handler"))


def snoozed(delay: float) -> Failure:
    """Return the outcome for a message that the handler snoozed. It is no failure, so it has no error."""
    return Failure("release", min(delay, MAX_DELAY))


def rejected(reason: object) -> Failure:
    """Return the failure for a reject by the handler."""
    return _failure("reject", None, Reject(text_of(reason)))


def invalid(error: Exception) -> Failure:
    """Return the failure for a payload that does not fit its annotation. msgspec names the path of
    what is wrong."""
    text = storable(f"The payload does not fit: {error}")
    return Failure("invalid", None, text, None, error_type(error), error)


def timed_out(seconds: float, attempt: int, backoff: Backoff, *, stoppable: bool) -> Failure:
    """Return the failure for a handler that exceeded its timeout."""
    note = "" if stoppable else " (a sync handler can't be interrupted; this was noticed when it returned)"
    error = TimeoutError(f"The handler took longer than its timeout of {seconds:g} s{note}.")
    return Failure("retry", _delay(None, attempt, backoff), str(error), None, error_type(error), error)


def _failure(kind: Kind, delay: float | None, error: BaseException) -> Failure:
    text, trace = error_text(error)
    return Failure(kind, delay, text, trace, error_type(error), error)


def _delay(delay: float | None, attempt: int, backoff: Backoff) -> float:
    return min(backoff.delay(attempt, random.random()) if delay is None else delay, MAX_DELAY)
