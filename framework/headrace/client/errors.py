"""Conversion of a server's error responses into the exceptions that the database's own calls raise."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.model.errors import (
    ERROR_CODES,
    AlreadyExists,
    ConfigurationError,
    HeadraceError,
    InvalidInput,
    LeaseLost,
    StoreUnavailable,
)


class NotFound(HeadraceError, LookupError):
    """The server has no such message, token or source."""

    exit_code = 66  # EX_NOINPUT


class Busy(HeadraceError):
    """The server is overloaded by requests or by waiting receivers. Try again."""

    exit_code = 75  # EX_TEMPFAIL


class NotAllowed(ConfigurationError):
    """The token's scopes don't allow this call."""


class StaleAckIds(LeaseLost):
    """A settle call had ack ids with lost leases. `stale` lists them. The other ids are settled."""

    def __init__(self, summary: str, stale: list[str]) -> None:
        super().__init__(summary)
        self.stale = stale


class ErrorBody(msgspec.Struct):
    """The body of an error response."""

    summary: str
    code: str = ""
    stale: list[str] = []
    validation_errors: dict[str, list[str]] = {}


def error_of(server: str, status: int, reason: str, body: bytes) -> HeadraceError:
    """Return the exception for an error response."""
    problem = _decode(body)
    if problem is None:
        return _error_of_another_program(server, status, reason)
    if status == 401:
        return ConfigurationError(
            f"The server {server} requires a token. {problem.summary} Pass --token, set HEADRACE_TOKEN, or store a token with"
            " `headrace context add`."
        )
    if status == 403:
        return NotAllowed(
            f"The token is not allowed to do this at the server {server}. {problem.summary} Pass another token with --token,"
            " HEADRACE_TOKEN or `headrace context add`."
        )
    if problem.stale:
        return StaleAckIds(problem.summary, problem.stale)
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(status, HeadraceError)
    if issubclass(kind, AlreadyExists):
        return kind(problem.summary, differing=tuple(problem.validation_errors))
    if issubclass(kind, (StoreUnavailable, Busy)) or status >= 500:
        return kind(f"The server {server}: {problem.summary}")
    return kind(problem.summary)


def unreachable(server: str, reason: str) -> StoreUnavailable:
    """Return the error for a server that can't be reached."""
    return StoreUnavailable(f"The server {server} can't be reached: {reason}.")


def not_headrace(server: str, reason: str) -> ConfigurationError:
    """Return the error for a server that doesn't respond as Headrace does."""
    return ConfigurationError(f"Is {server} a Headrace server? {reason}")


def _decode(body: bytes) -> ErrorBody | None:
    """Decode an error body. Return None if it isn't one of Headrace's."""
    try:
        return msgspec.json.decode(body, type=ErrorBody)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _error_of_another_program(server: str, status: int, reason: str) -> HeadraceError:
    answer = f"{status} {reason}".rstrip()
    if status in (502, 503, 504):
        return unreachable(server, f"it responded with {answer}")
    if status == 429:
        return Busy(f"The server {server} is overloaded, it responded with {answer}. Try again later.")
    if 300 <= status < 400:
        return not_headrace(
            server, f"It responded with {answer}, and redirects aren't followed. Pass the URL to which it redirects."
        )
    return not_headrace(server, f"It responded with {answer}.")


_BY_CODE: dict[str, type[Any]] = {
    **{name: code.kind for name, code in ERROR_CODES.items() if code.kind is not None},
    "ambiguous": InvalidInput,
    "unknown_dead_letter": InvalidInput,
    "max_waiting": Busy,
}
"""The exceptions by the codes of the API. The last three codes exist only on servers."""

_BY_STATUS: dict[int, type[HeadraceError]] = {
    400: InvalidInput,
    404: NotFound,
    405: ConfigurationError,
    409: AlreadyExists,
    413: InvalidInput,
    422: InvalidInput,
    429: Busy,
    503: StoreUnavailable,
}
