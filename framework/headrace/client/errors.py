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


class NotThere(HeadraceError, LookupError):
    """The server has no such message, dead letter, token or source."""

    exit_code = 66  # EX_NOINPUT


class AlreadyThere(InvalidInput):
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


class Refusal(msgspec.Struct):
    """The body of an error response."""

    summary: str
    code: str = ""
    stale: list[str] = []


def refusal(body: bytes) -> Refusal | None:
    """Decode an error body. Return None if it isn't one of Headrace's."""
    try:
        return msgspec.json.decode(body, type=Refusal)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def error_of(server: str, status: int, reason: str, body: bytes) -> HeadraceError:
    """Return the exception for an error response."""
    told = refusal(body)
    if told is None:
        return _of_another(server, status, reason)
    if status == 401:
        return ConfigurationError(
            f"The server {server} wants to know who asks: {told.summary} Give --token, set HEADRACE_TOKEN, or keep a token"
            " with `headrace context add`."
        )
    if status == 403:
        return NotAllowed(
            f"The token may not do this at the server {server}: {told.summary} Give another one by --token, HEADRACE_TOKEN"
            " or `headrace context add`."
        )
    if told.stale:
        return StaleAckIds(told.summary, told.stale)
    kind = _by_code().get(told.code) or _BY_STATUS.get(status, HeadraceError)
    if issubclass(kind, (StoreUnavailable, Busy)) or status >= 500:
        return kind(f"The server {server}: {told.summary}")
    return kind(told.summary)


def unreachable(server: str, problem: str) -> StoreUnavailable:
    """Return the error for a server that can't be reached."""
    return StoreUnavailable(f"The server {server} can't be reached: {problem}.")


def not_headrace(server: str, problem: str) -> ConfigurationError:
    """Return the error for a server that doesn't answer as Headrace does."""
    return ConfigurationError(f"Is {server} a Headrace server? {problem[:1].upper()}{problem[1:].rstrip('.')}.")


def _of_another(server: str, status: int, reason: str) -> HeadraceError:
    answered = f"it answered {status} {reason}".rstrip()
    if status in (502, 503, 504):
        return unreachable(server, answered)
    if status == 429:
        return Busy(f"The server {server} has too much to do: {answered}.")
    if 300 <= status < 400:
        return not_headrace(server, f"{answered}, and redirects aren't followed: give the URL that it leads to")
    return not_headrace(server, answered)


@cache
def _by_code() -> dict[str, type[Any]]:
    """Return the exceptions by their API codes.

    A server derives a code from an exception's name. The last three codes exist only on servers.
    """
    from headrace.model import errors, sources, tokens

    kinds = [kind for module in (errors, sources, tokens) for kind in vars(module).values()]
    known = {_code(kind): kind for kind in kinds if isinstance(kind, type) and issubclass(kind, HeadraceError)}
    return {
        **known,
        "exists": AlreadyThere,
        "ambiguous": InvalidInput,
        "max_waiting": Busy,
    }


def _code(kind: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


_BY_STATUS: dict[int, type[HeadraceError]] = {
    400: InvalidInput,
    404: NotThere,
    405: ConfigurationError,
    409: AlreadyThere,
    413: InvalidInput,
    422: InvalidInput,
    429: Busy,
    503: StoreUnavailable,
}
