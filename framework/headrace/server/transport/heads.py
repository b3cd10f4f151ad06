"""Heads of requests that need no ASGI, and those that were parsed before.

A client sends the same head again and again: on its connection only the body changes, and mostly not even the size of
that. A head that is byte for byte one that was parsed before has the same meaning, so it is looked up instead of parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from headrace.server.http import Scope

MAX_HEAD = 1024
"""Largest size in bytes of a head that is remembered."""

MAX_HEADS = 1000
"""The most heads that are remembered. They use about two kilobytes each."""

_END = b"\r\n\r\n"


def size_of(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    """Return the size of a head in bytes."""
    return len(url) + sum(len(name) + len(value) + 4 for name, value in headers)


class Head:
    """The head of a request that needs no ASGI.

    Args:
        endpoint: answers the request, see `headrace.server.transport.exchange.Endpoint`.
        scope: what ASGI's scope says about it, without the connection.

    Attributes:
        plain: whether the endpoint has found that the headers show no sign of a browser, so it needs not look again.
    """

    __slots__ = ("endpoint", "method", "plain", "query_string", "scope")

    def __init__(self, endpoint: Callable[[Any], Coroutine[Any, Any, None] | None], scope: Scope) -> None:
        self.endpoint = endpoint
        self.scope = scope
        self.method: str = scope["method"]
        self.query_string: bytes = scope["query_string"]
        self.plain = False


class KnownHeads:
    """The heads that the connections of a server have parsed.

    A head is remembered only if it came at the beginning of a piece of input that ended with the request's body, and if
    the connection stays open after it. When there are too many, all are forgotten. Access tokens in them stay in memory
    for as long, and are checked in every request.
    """

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[Head, int]] = {}  # with the sizes of their bodies

    def find(self, data: bytes) -> tuple[Head, bytes] | None:
        """Return the head and the body of the one request that a piece of input consists of. None if the head isn't
        known, or if the piece has less or more than this request."""
        end = data.find(_END, 0, MAX_HEAD)
        if end < 0:
            return None
        known = self._heads.get(data[:end])
        if known is None or len(data) != end + 4 + known[1]:
            return None
        return known[0], data[end + 4 :]

    def add(self, data: bytes, head: Head, body: bytes) -> None:
        """Remember the head of a request that was parsed from a piece of input. It isn't if the piece has anything
        else than this head and this body."""
        end = data.find(_END, 0, MAX_HEAD)
        if end < 0 or data[end + 4 :] != body:
            return
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        self._heads[data[:end]] = head, len(body)
