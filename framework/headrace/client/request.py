"""A request to a server, and its response. The transport sends requests, and `--as-curl` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from headrace.client.errors import not_headrace
from headrace.model.clock import zoned
from headrace.model.errors import InvalidInput

T = TypeVar("T")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a server.

    Attributes:
        method: GET, POST, PATCH or DELETE.
        path: the path below the server's URL, escaped.
        query: the parameters in order. A parameter with several values occurs several times.
        body: the content of the body, encoded as JSON. None for no body.
        extra_time: seconds that the server may take for this request, in addition to the timeout of
            every request.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: dict[str, Any] | None = None
    extra_time: float = 0.0

    @property
    def target(self) -> str:
        """The path with the query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    @property
    def content(self) -> bytes | None:
        """The body as JSON."""
        return None if self.body is None else msgspec.json.encode(self.body)


class Response(msgspec.Struct, frozen=True):
    """An HTTP response.

    Attributes:
        server: the URL of the server, for error messages.
        status: the status code.
        reason: the reason phrase.
        body: the undecoded body.
    """

    server: str
    status: int
    reason: str
    body: bytes

    def decode(self, type: type[T]) -> T:  # noqa: A002 - the word of msgspec
        """Decode the JSON body. Raises `ConfigurationError` if it isn't the answer of a Headrace server."""
        try:
            return msgspec.json.decode(self.body, type=type)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise not_headrace(self.server, f"Its answer can't be decoded: {error}.") from error


def path_of(template: str, names: Mapping[str, object]) -> str:
    """Fill a path template such as `/v1/streams/{stream}`. Names are escaped, including their slashes.

    Raises `InvalidInput` for an empty name, and for one that a proxy resolves (`.` and `..`). They would make another path.
    """
    for name, value in names.items():
        if value in ("", ".", ".."):
            shown = f"is {value!r}" if value else "is empty"
            raise InvalidInput(f"The {name} {shown}, which would name another object. Pass a name.")
    return template.format_map({name: quote(str(value), safe="") for name, value in names.items()})


def query_of(parameters: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return query parameters as text. A list becomes several parameters of one name."""
    return tuple(
        (name, _text(element))
        for name, value in parameters.items()
        for element in (value if isinstance(value, list) else [value])
    )


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def iso(time: datetime) -> str:
    """Format a time in ISO 8601. A time without a zone is taken as UTC."""
    return zoned(time).isoformat()
