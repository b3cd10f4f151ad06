"""The data plane's plain HTTP: a request with its body read, and an answer. No framework, since this is what happens thousands of
times a second; everything else goes through Litestar."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

TURNS = 3
"""Turns of the event loop in which an application around us may tell that the client has gone."""

ANSWER = "headrace.answer"
"""In the scope of a request to our own web server: answers it in one write. Through ASGI it would be two, of which each wakes the client."""

_JSON = (b"content-type", b"application/json")


class Reply(msgspec.Struct, frozen=True):
    """An answer: status, JSON body, and headers besides content-type and content-length."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send) -> None:
        """Send it."""
        length = (b"content-length", b"%d" % len(self.body))
        await send({"type": "http.response.start", "status": self.status, "headers": [_JSON, length, *self.headers]})
        await send({"type": "http.response.body", "body": self.body})


class Call:
    """A request of the data plane.

    Attributes:
        names: what stood in the path's places: stream, consumer.
        body: all of it.
    """

    __slots__ = ("_receive", "_scope", "body", "names")

    def __init__(self, scope: Scope, receive: Receive, names: tuple[str, ...], body: bytes) -> None:
        self._scope = scope
        self._receive = receive
        self.names = names
        self.body = body

    @property
    def authorization(self) -> str | None:
        """The header of that name."""
        for name, value in self._scope["headers"]:
            if name == b"authorization":
                return str(value, "latin-1")
        return None

    @property
    def headers(self) -> Iterable[tuple[bytes, bytes]]:
        """As they came, the names in lower case."""
        return self._scope["headers"]  # type: ignore[no-any-return]

    @property
    def query_string(self) -> bytes:
        """The query as it came."""
        return self._scope["query_string"]  # type: ignore[no-any-return]

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters; of one that comes twice the last counts."""
        text = self._scope["query_string"]
        if not text:
            return {}
        if b"%" in text or b"+" in text or b";" in text:
            return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True))
        return {name: value for name, _, value in (part.partition("=") for part in text.decode("latin-1").split("&"))}

    async def gone(self) -> None:
        """Wait until the client has gone away."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def left(self) -> bool:
        """Whether the client has gone away by now. It waits for nothing but its turn."""
        known = getattr(getattr(self._receive, "__self__", None), "disconnected", None)
        if isinstance(known, bool):  # uvicorn's own, and nobody's between us
            return known
        # A task, since what stands between may not bear to be left half way other than by a cancellation.
        asking = asyncio.ensure_future(self._receive())
        for _ in range(TURNS):
            if asking.done():
                break
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        return not asking.cancelled() and asking.exception() is None and asking.result()["type"] == "http.disconnect"


Endpoint = Callable[[Call], Awaitable[Reply | None]]
"""Answers a call; None when nobody is there any more to be answered."""
