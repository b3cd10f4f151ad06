"""HTTP error responses: a sentence about what is wrong and how to correct it, a code for
programs, and the invalid fields.

No answer contains words of the database or its driver, nor its address, user or name: an error about them has a
sentence of its own for callers (`HeadraceError.public`), and the log has the original.
"""

from __future__ import annotations

import copyreg
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

from headrace.model.errors import (
    ERROR_CODES,
    AlreadyExists,
    ConfigurationError,
    HeadraceError,
    InvalidInput,
    NotConnected,
    StoreError,
    StoreUnavailable,
    code_of,
    public_text,
)
from headrace.model.log import Log
from headrace.server.http import Response

log = Log("headrace")

RETRY_AFTER = "1"
"""Seconds after which a refused client may try again."""


class Problem(HeadraceError):
    """An error of the HTTP API itself.

    Args:
        status: the HTTP status.
        code: a code in snake case, for programs.
        summary: what is wrong and how to correct it.
        validation_errors: what is wrong with each invalid field.
        headers: additional headers of the response.
        more: additional fields of the response's body.
    """

    def __init__(
        self,
        status: int,
        code: str,
        summary: str,
        *,
        validation_errors: Mapping[str, Sequence[str]] | None = None,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(summary)
        self.status = status
        self.code = code
        self.validation_errors = validation_errors
        self.headers = dict(headers or {})
        self.more = dict(more or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]  # without `__init__`


def only_reads(path: str) -> Problem:
    """Return the error of a request that wants to change what can only be read."""
    text = f"{path} supports GET and HEAD only."
    return Problem(405, "method_not_allowed", text, headers={"allow": "GET, HEAD"})


def invalid(text: str, field: str, what: str | None = None) -> Problem:
    """Return the error about an invalid field of a request. `what` is wrong with the field, by default the text says it."""
    return Problem(422, "invalid", text, validation_errors={field: [what or text]})


def invalid_value(field: str, problem: str, remedy: str) -> Problem:
    """Return the error about the value of a field: what is wrong with it, and what would be right."""
    return invalid(f"{problem}. {remedy}", field, remedy)


class TooManyWaiting(Problem):
    """The number of requests that wait for messages of a consumer has reached its `max_waiting`."""

    def __init__(self, consumer: str, limit: int) -> None:
        super().__init__(
            429,
            "max_waiting",
            f"{limit} requests already wait for messages of the consumer {consumer!r}, which is its max_waiting. Try again"
            " later, use fewer receivers, or raise max_waiting.",
            headers={"retry-after": RETRY_AFTER},
        )


class StaleAckIds(Problem):
    """A strict settle had ack ids with lost leases. The other ids are settled."""

    def __init__(self, stale: list[str]) -> None:
        super().__init__(
            409,
            "lease_lost",
            f"{len(stale)} of the ack ids are stale, because their leases were lost. Their messages may be delivered again."
            " The others were settled.",
            more={"stale": stale},
        )


def unavailable(sentence: str) -> StoreUnavailable:
    """Return an error about the server itself, such as that it is stopping. Callers get the sentence."""
    return StoreUnavailable(sentence).with_public(sentence)


def not_running() -> StoreUnavailable:
    """Return the error of a server that has not started yet, or that stops."""
    return unavailable("The server is starting or stopping. Try again.")


MAX_LOGGED = 10
"""Refusals that are logged per second. More are only counted, since callers cause them."""

MAX_LOGGED_TEXT = 2_000
"""Largest number of characters of a logged refusal, which may repeat a value of the request."""


class RefusalLog:
    """Logs the originals of errors whose answers don't have them.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = float("-inf")
        self._logged = self._skipped = 0

    def refused(self, error: HeadraceError) -> None:
        """Log an error, or count it."""
        now = self._clock()
        if now - self._since >= 1.0:
            if self._skipped:
                log.warning("more requests refused by the database", requests=self._skipped)
            self._since, self._logged, self._skipped = now, 0, 0
        if self._logged >= MAX_LOGGED:
            self._skipped += 1
            return
        self._logged += 1
        log.warning("request refused by the database", error=f"{type(error).__name__}: {error}"[:MAX_LOGGED_TEXT])


_refusals = RefusalLog()

SERVING: ContextVar[str | None] = ContextVar("database", default=None)
"""The name of the further database in which the request is answered. None for the server's own."""


def error_response(error: Exception) -> Response:
    """Convert an error to a response. Unexpected errors are logged and returned as a generic 500."""
    problem = problem_of(error)
    forget_frames(error)
    body: dict[str, Any] = {"summary": str(problem), "code": problem.code}
    if problem.validation_errors:
        body["validation_errors"] = problem.validation_errors
    headers = tuple((name.encode(), value.encode("latin-1")) for name, value in problem.headers.items())
    return Response(problem.status, msgspec.json.encode({**body, **problem.more}), headers)


def forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error that has been handled, and of those that it comes from.

    A shared call raises its error through a future. The frames in the traceback have that future, and the bodies and
    messages of requests. As a cycle they would stay until the garbage collector's next run, which goes by the number of
    objects and not by their size.
    """
    while error is not None and error.__traceback__ is not None:  # public: dropped, not said
        error.__traceback__ = None  # public: likewise
        error = error.__cause__ or error.__context__  # public: likewise


def problem_of(error: Exception) -> Problem:
    """Convert an error to the API's `Problem`, and log what its answer leaves out."""
    match error:
        case Problem():
            return error
        case HeadraceError():
            return _problem_of_ours(error)
        case msgspec.ValidationError():
            return validation_problem(error)
        case msgspec.DecodeError() | UnicodeDecodeError():
            return Problem(400, "malformed", f"The body is not JSON in UTF-8: {error}.")  # public: of the body
        case RecursionError():
            return Problem(400, "malformed", "The body is nested too deeply.")
    return _unexpected(error)


def _problem_of_ours(error: HeadraceError) -> Problem:
    code = "store_unavailable" if isinstance(error, NotConnected) else code_of(error)
    status = ERROR_CODES[code].status
    if code == "internal":
        return _unexpected(error)
    if isinstance(error, StoreError):
        return Problem(status, code, f"{_located(error.public or '')} Its id is {_logged(error)}.")
    sentence = public_text(error)
    if error.public is not None:
        sentence = _located(sentence)
        if error.public != str(error):  # public: for the log
            _refusals.refused(error)
    headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": RETRY_AFTER}}.get(status)
    return Problem(status, code, sentence, validation_errors=_fields(error, sentence), headers=headers)


def _located(sentence: str) -> str:
    """Return a sentence about the database, with its name if it is not the server's own."""
    name = SERVING.get()
    return sentence if name is None or repr(name) in sentence else f"In the database {name!r}: {sentence}"


def _fields(error: HeadraceError, sentence: str) -> dict[str, list[str]] | None:
    if isinstance(error, AlreadyExists) and error.differing:
        return {name: ["The existing one has another value."] for name in error.differing}
    if isinstance(error, (InvalidInput, ConfigurationError)) and error.field is not None:
        return {error.field: [sentence]}
    return None


def _unexpected(error: Exception) -> Problem:
    return Problem(
        500, "internal", f"The server failed unexpectedly. Its log has the error, with the id {_logged(error)}."
    )


def _logged(error: Exception) -> str:
    """Log an unexpected error. Returns the id by which an operator finds it."""
    error_id = secrets.token_hex(6)
    log.error("request failed unexpectedly", id=error_id, error=str(error) or type(error).__name__, exc_info=error)
    return error_id


_PLACE = re.compile(r" - at `\$?\.?(.*)`$")
_FIELD = re.compile(r"field `([^`]*)`")


def validation_problem(error: msgspec.ValidationError) -> Problem:
    """Convert msgspec's error about a JSON body into fields and sentences."""
    text = str(error)  # public: of the body
    place = _PLACE.search(text)
    field = place[1] if place else ""
    sentence = text[: place.start()] if place else text
    named = _FIELD.search(sentence)
    if named:
        field = f"{field}.{named[1]}" if field else named[1]
    return Problem(
        422,
        "invalid",
        f"The body is invalid: {text.rstrip('.')}.",
        validation_errors={field or "body": [f"{sentence.rstrip('.')}."]},
    )
