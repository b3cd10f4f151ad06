"""Conversion of a server's error responses into the exceptions that the database's own calls raise."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from headrace.model.errors import (
    ConfigurationError,
    HeadraceError,
    InvalidInput,
    LeaseLost,
    StoreUnavailable,
)


class NotFound(HeadraceError, LookupError):
    """The server has no such message, token or source."""

    exit_code = 66  # EX_NOINPUT


class AlreadyExists(InvalidInput):
    """The object to be created exists."""


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
    kind = _by_code().get(problem.code) or _BY_STATUS.get(status, HeadraceError)
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


@cache
def _by_code() -> dict[str, type[Any]]:
    """Return the exceptions by their API codes.

    A server derives a code from an exception's name. The last four codes exist only on servers.
    """
    from headrace.model import errors, sources, tokens

    kinds = [kind for module in (errors, sources, tokens) for kind in vars(module).values()]
    known = {_code(kind): kind for kind in kinds if isinstance(kind, type) and issubclass(kind, HeadraceError)}
    return {
        **known,
        "exists": AlreadyExists,
        "ambiguous": InvalidInput,
        "unknown_dead_letter": InvalidInput,
        "max_waiting": Busy,
    }


def _code(kind: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


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
