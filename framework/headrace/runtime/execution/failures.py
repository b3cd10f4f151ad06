"""Turns exceptions and other failures of handlers into `Failure` values that the store accepts."""

from __future__ import annotations

import random
import traceback

from headrace.model.errors import LeaseLost
from headrace.model.outcomes import RELEASE, Failure, Reject, Release, Retry, Unfit
from headrace.model.specs import Backoff

MAX_ERROR = 2_000
MAX_TRACEBACK = 16_000
"""Largest number of characters kept of an error and of its traceback."""

MAX_DELAY = 10 * 366 * 86_400.0
"""Longest delay of a retry in seconds. Postgres timestamps end a few hundred thousand years from now."""


def failure_of(error: BaseException, attempt: int, backoff: Backoff) -> Failure:
    """Return the failure for an exception of a handler, or for a `Retry` or `Reject` that it returned."""
    if isinstance(error, LeaseLost):
        return RELEASE  # this process may not settle it any more
    if isinstance(error, Release):
        return RELEASE
    text, trace = describe(error)
    if isinstance(error, Reject):
        return Failure("invalid" if isinstance(error, Unfit) else "reject", None, text, trace)
    return _retry(error.after if isinstance(error, Retry) else None, attempt, backoff, text, trace)


def nacked(delay: float | None, attempt: int, backoff: Backoff) -> Failure:
    """Return the failure for a nack by the handler. Without a delay the backoff decides."""
    return _retry(delay, attempt, backoff, "nacked by the handler")


def rejected(reason: object) -> Failure:
    """Return the failure for a reject by the handler."""
    return Failure("reject", None, _storable(_text(reason), MAX_ERROR))


def invalid(error: Exception) -> Failure:
    """Return the failure for a payload that does not fit its annotation. msgspec names the path of
    what is wrong."""
    return Failure("invalid", None, _storable(f"The payload does not fit: {error}", MAX_ERROR))


def timed_out(seconds: float, attempt: int, backoff: Backoff, *, stoppable: bool) -> Failure:
    """Return the failure for a handler that exceeded its timeout."""
    note = "" if stoppable else " (a sync handler can't be interrupted; this was noticed when it returned)"
    return _retry(None, attempt, backoff, f"The handler took longer than its timeout of {seconds:g} s{note}.")


def describe(error: BaseException) -> tuple[str, str | None]:
    """Return the error as text, and its traceback if it has one, both bounded and storable."""
    text = _text(error)
    if not isinstance(error, (Retry, Reject)):
        text = f"{type(error).__name__}: {text}"
    if error.__traceback__ is None:
        return _storable(text, MAX_ERROR), None
    trace = "".join(traceback.format_exception(error))
    return _storable(text, MAX_ERROR), _storable(trace[-MAX_TRACEBACK:], MAX_TRACEBACK)


def _retry(delay: float | None, attempt: int, backoff: Backoff, text: str, trace: str | None = None) -> Failure:
    wait = backoff.delay(attempt, random.random()) if delay is None else delay
    return Failure("retry", min(wait, MAX_DELAY), text, trace)


def _text(thing: object) -> str:
    """`str(thing)`, also for an exception with a failing `__str__`, which must not break anything else."""
    try:
        return str(thing)
    except Exception:
        return f"<a {type(thing).__name__} that can't be shown>"


def _storable(text: str, limit: int) -> str:
    """Return text that Postgres accepts, without NUL and without lone surrogates."""
    return text[:limit].replace("\0", "\\0").encode("utf-8", "replace").decode()
