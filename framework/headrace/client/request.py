"""One request to a server: what the transport sends, and what `--as-curl` prints."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from headrace.client.errors import not_headrace
from headrace.model.errors import InvalidInput

T = TypeVar("T")

PREFIX = "/v1"

JUDGING = 30.0
"""Seconds that a server may take to judge messages by a condition."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a server.

    Attributes:
        method: GET, POST, PATCH or DELETE.
        path: below the server's URL, escaped.
        query: parameters in their order; one with several values stands there several times.
        body: what the body says, to be written as JSON; None for no body.
        wait: seconds that the server may take for it, besides what any answer may take.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: dict[str, Any] | None = None
    wait: float = 0.0

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def content(self) -> bytes | None:
        """The body as JSON."""
        return None if self.body is None else msgspec.json.encode(self.body)


class Answer(msgspec.Struct, frozen=True):
    """What a server answered, when that was no error."""

    server: str
    status: int
    body: bytes

    def read(self, shape: type[T]) -> T:
        """The body. Raises `ConfigurationError` when it isn't what a Headrace server answers."""
        try:
            return msgspec.json.decode(self.body, type=shape)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise not_headrace(self.server, f"its answer can't be read: {error}") from error


def get(*place: str, wait: float = 0.0, **query: Any) -> Request:
    """A request that changes nothing. `place` is the path's parts; parameters that are None are left out."""
    return Request(method="GET", path=_path(place), query=_query(query), wait=wait)


def post(*place: str, wait: float = 0.0, **body: Any) -> Request:
    """A request with a body, of which what is None is left out."""
    return Request(method="POST", path=_path(place), body=_body(body), wait=wait)


def patch(*place: str, **body: Any) -> Request:
    """A request that changes settings: a setting that is None is unset."""
    return Request(method="PATCH", path=_path(place), body=body)


def delete(*place: str, wait: float = 0.0, **query: Any) -> Request:
    """A request that deletes something."""
    return Request(method="DELETE", path=_path(place), query=_query(query), wait=wait)


def _path(place: Collection[str]) -> str:
    if not all(place):
        raise InvalidInput("A name is empty: write that of a stream, a consumer, a key.")
    return "/".join((PREFIX, *(quote(part, safe="") for part in place)))


def _query(given: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, _text(one))
        for name, value in given.items()
        for one in (value if isinstance(value, (list, tuple)) else (value,))
        if one is not None
    )


def _body(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return iso(value) if isinstance(value, datetime) else str(value)


def iso(moment: datetime) -> str:
    """A time as it goes over the wire; without a zone it is UTC."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
