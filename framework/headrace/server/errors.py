"""HTTP error responses: a sentence about what is wrong and how to correct it, a code for
programs, and the invalid fields."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.model.errors import (
    ConfigurationError,
    FilterTooSlow,
    HeadraceError,
    InUse,
    InvalidInput,
    LeaseLost,
    NotConnected,
    SchemaError,
    StoreError,
    StoreUnavailable,
    UnknownConsumer,
    UnknownSource,
    UnknownStream,
)
from headrace.model.log import Log
from headrace.model.sources import SourceExists
from headrace.model.tokens import Forbidden, TokenExists, Unauthorized, UnknownToken
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
        self, status: int, code: str, summary: str, *, validation_errors: Mapping[str, Sequence[str]] | None = None,
        headers: Mapping[str, str] | None = None, more: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(summary)
        self.status = status
        self.code = code
        self.validation_errors = validation_errors
        self.headers = dict(headers or {})
        self.more = dict(more or {})


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


def error_response(error: Exception) -> Response:
    """Convert an error to a response. Unexpected errors are logged and returned as a generic 500."""
    problem = problem_of(error)
    body: dict[str, Any] = {"summary": str(problem), "code": problem.code}
    if problem.validation_errors:
        body["validation_errors"] = problem.validation_errors
    headers = tuple((name.encode(), value.encode("latin-1")) for name, value in problem.headers.items())
    return Response(problem.status, msgspec.json.encode({**body, **problem.more}), headers)


def problem_of(error: Exception) -> Problem:
    """Convert an error to the API's `Problem`."""
    match error:
        case Problem():
            return error
        case Unauthorized():
            return Problem(401, _code(error), str(error), headers={"www-authenticate": "Bearer"})
        case Forbidden():
            return Problem(403, _code(error), str(error))
        case UnknownStream() | UnknownConsumer() | UnknownSource() | UnknownToken():
            return Problem(404, _code(error), str(error))
        case FilterTooSlow():
            return Problem(422, _code(error), str(error))
        case InUse() | LeaseLost() | SourceExists() | TokenExists():
            return Problem(409, _code(error), str(error))
        case NotConnected():
            return Problem(
                503,
                "store_unavailable",
                "The server is not connected to its database, because it starts or stops. Try again.",
                headers={"retry-after": RETRY_AFTER},
            )
        case InvalidInput() | ConfigurationError():
            return Problem(422, _code(error), str(error))
        case StoreError():
            log.error("request failed, unknown database error", error=error, exc_info=error)
            return Problem(500, _code(error), str(error))
        case StoreUnavailable() | SchemaError():
            return Problem(503, _code(error), str(error), headers={"retry-after": RETRY_AFTER})
        case HeadraceError():
            return Problem(400, _code(error), str(error))
        case msgspec.ValidationError():
            return validation_problem(error)
        case msgspec.DecodeError() | UnicodeDecodeError():
            return Problem(400, "malformed", f"The body is not JSON in UTF-8: {error}.")
        case RecursionError():
            return Problem(400, "malformed", "The body is nested too deeply.")
    log.error("request failed unexpectedly", error=error, exc_info=error)
    return Problem(500, "internal", "The server failed unexpectedly. Its log has the error.")


_PLACE = re.compile(r" - at `\$?\.?(.*)`$")
_FIELD = re.compile(r"field `([^`]*)`")


def validation_problem(error: msgspec.ValidationError) -> Problem:
    """Convert msgspec's error about a JSON body into fields and sentences."""
    text = str(error)
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


def _code(error: Exception) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
