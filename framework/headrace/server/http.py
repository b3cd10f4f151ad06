"""Plain HTTP of the data plane: a request with its body, and a response.

It uses no framework, since it runs thousands of times a second. Everything else goes through
Litestar.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl

import anyio
import msgspec

from headrace.server.callers import Caller

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

DISCONNECT_TURNS = 3
"""Turns of the event loop in which an outer application can report a disconnect."""

WATCH = 0.05
"""Seconds that a request takes before its client's connection is watched."""

SEND_RESPONSE = "headrace.send_response"
"""Key in the scope of Headrace's own web server. Its function sends a response in one write. ASGI
needs two, and each wakes the client."""

HEAD = "headrace.head"
"""Key in the scope of a HEAD request, whose method there is GET: it is answered as GET is, and receives nothing."""

NO_STORE = (b"cache-control", b"no-store")

PROTECTION = (NO_STORE, (b"x-content-type-options", b"nosniff"))
"""Headers of every response of the API. Responses are for one caller and one moment, and contain texts of clients, which
a browser must not take for a page."""

_JSON = (b"content-type", b"application/json")


class Response(msgspec.Struct, frozen=True):
    """A response: status, JSON body, and headers in addition to content-type and content-length."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send) -> None:
        """Send the response."""
        length = (b"content-length", b"%d" % len(self.body))
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": [_JSON, length, *PROTECTION, *self.headers],
            }
        )
        await send({"type": "http.response.body", "body": self.body})


def as_get(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """Return the GET request as which a HEAD request is answered, and the function that sends the answer without its body."""
    ended = False

    async def send_head(message: MutableMapping[str, Any]) -> None:
        nonlocal ended
        if message["type"] == "http.response.start":
            await send(message)
        elif not ended:  # of several pieces the others are not awaited
            ended = True
            await send({"type": "http.response.body", "body": b""})

    return {**scope, "method": "GET", HEAD: True, SEND_RESPONSE: lambda response: False}, send_head


class Request:
    """A request of the data plane.

    Attributes:
        names: the names in the path, such as stream and consumer.
        pieces: the whole body, in pieces as it arrived.
        caller: what it may do.
    """

    __slots__ = ("_receive", "_scope", "caller", "names", "pieces")

    def __init__(
        self, scope: Scope, receive: Receive, names: tuple[str, ...], pieces: Sequence[bytes], caller: Caller
    ) -> None:
        self._scope = scope
        self._receive = receive
        self.names = names
        self.pieces = pieces
        self.caller = caller

    @property
    def body(self) -> bytes:
        """The whole body. To join a large one takes long."""
        return b"".join(self.pieces)  # of a single piece it is this one

    @property
    def scope(self) -> Scope:
        """The scope of ASGI."""
        return self._scope

    @property
    def headers(self) -> Iterable[tuple[bytes, bytes]]:
        """The headers as received, with lower-case names."""
        return self._scope["headers"]  # type: ignore[no-any-return]

    @property
    def query_string(self) -> bytes:
        """The query string as received."""
        return self._scope["query_string"]  # type: ignore[no-any-return]

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters. If a parameter occurs twice, the last value counts."""
        return parameters(self._scope["query_string"])

    async def wait_for_disconnect(self) -> None:
        """Wait until the client has disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def is_disconnected(self) -> bool:
        """Return whether the client has disconnected by now. It waits for at most a few turns of
        the event loop."""
        disconnected = getattr(getattr(self._receive, "__self__", None), "disconnected", None)
        if isinstance(disconnected, bool):  # uvicorn's own `receive`, with no wrapper around it
            return disconnected
        # In a task, since a wrapper of `receive` may support no other interruption than a
        # cancellation.
        event = asyncio.ensure_future(self._receive())
        for _ in range(DISCONNECT_TURNS):
            if event.done():
                break
            await asyncio.sleep(0)
        event.cancel()
        await asyncio.wait([event])
        return not event.cancelled() and event.exception() is None and event.result()["type"] == "http.disconnect"


def parameters(query: bytes) -> dict[str, str]:
    """Return the parameters of a query string. If a parameter occurs twice, the last value counts."""
    if not query:
        return {}
    if b"%" in query or b"+" in query or b";" in query:
        return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    return {name: value for name, _, value in (part.partition("=") for part in query.decode("latin-1").split("&"))}


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block if the client disconnects, since nobody wants its result any more.

    Args:
        receive: reports only the disconnect, since the body has been read. It is asked after `WATCH` seconds.
    """

    async def watch() -> None:
        await asyncio.sleep(WATCH)
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    with anyio.CancelScope() as scope:
        watching = asyncio.ensure_future(watch())
        try:
            yield
        finally:
            watching.cancel()


Endpoint = Callable[[Request], Awaitable[Response | None]]
"""Handles a request. It returns None if the client has disconnected."""
