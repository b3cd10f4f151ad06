"""A request to a server. The transport sends it, and `--as-curl` prints it."""

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
"""Time limit in seconds for a server to evaluate a condition on messages."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a server.

    Attributes:
        method: GET, POST, PATCH or DELETE.
        path: the path below the server's URL, escaped.
        query: the parameters in order. A parameter with several values occurs several times.
        body: the content of the body, encoded as JSON. None for no body.
        wait: seconds that the server may take for this request, in addition to the limit of every
            answer.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: dict[str, Any] | None = None
    wait: float = 0.0

    @property
    def target(self) -> str:
        """The path with the query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def content(self) -> bytes | None:
        """The body as JSON."""
        return None if self.body is None else msgspec.json.encode(self.body)


class Answer(msgspec.Struct, frozen=True):
    """A successful response of a server."""

    server: str
    status: int
    body: bytes

    def read(self, shape: type[T]) -> T:
        """Decode the body. Raises `ConfigurationError` if it isn't the answer of a Headrace server."""
        try:
            return msgspec.json.decode(self.body, type=shape)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise not_headrace(self.server, f"its answer can't be read: {error}") from error


def get(*place: str, wait: float = 0.0, **query: Any) -> Request:
    """Make a GET request. `place` has the parts of the path. Parameters that are None are left out."""
    return Request(method="GET", path=_path(place), query=_query(query), wait=wait)


def post(*place: str, wait: float = 0.0, **body: Any) -> Request:
    """Make a POST request. Members of the body that are None are left out."""
    return Request(method="POST", path=_path(place), body=_body(body), wait=wait)


def patch(*place: str, **body: Any) -> Request:
    """Make a PATCH request. A setting that is None is unset."""
    return Request(method="PATCH", path=_path(place), body=body)


def delete(*place: str, wait: float = 0.0, **query: Any) -> Request:
    """Make a DELETE request."""
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
    """Format a time in ISO 8601. A time without a zone is taken as UTC."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
