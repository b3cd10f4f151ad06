"""A request of the data plane that has arrived in one piece, and its response, without ASGI.

Most requests of the data plane are so: a short head with common headers only, and a body that came with it. Such a
request needs no protection from slow clients, since it is complete. So it has no scope, queue and events of ASGI, and
its response is one write. All other requests go the ordinary way, and so does anything unusual about a head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headrace.server.http import NO_STORE, Response, Scope

COMMON_HEADERS = frozenset((
    b"host", b"content-type", b"content-length", b"authorization", b"user-agent", b"accept", b"accept-encoding",
    b"accept-language", b"connection",
))  # fmt: skip
"""Headers of an ordinary request. None of them frames a body in another way, or has a meaning that a proxy may see
differently, if each occurs once."""

MAX_TARGET = 512
"""The largest size of the target of a request that is answered in this way."""

LARGE = 16_384
"""Size of a body in bytes from which it is not copied to send it together with its head."""

_JSON_NO_STORE = b"%b: %b\r\ncontent-type: application/json\r\ncontent-length: " % NO_STORE
_DISCONNECT = {"type": "http.disconnect"}


FindEndpoint = Callable[[str, str], "Endpoint | None"]
"""Returns what answers requests with a method and a path. None if ASGI is to answer them."""


def is_common(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a head has common headers only, each of them once, and a host."""
    found = dict(headers)
    return len(found) == len(headers) and found.keys() <= COMMON_HEADERS and b"host" in found


class Exchange:
    """A request and its response. Beside its own methods it has what uvicorn's protocol uses of the current
    `RequestResponseCycle`.

    Args:
        endpoint: answers it.
        scope: what the application needs of the scope of ASGI.
        transport: of the connection.
        flow: of the connection.
        keep_alive: whether the connection goes on after the response.
        default_headers: the headers of every response.
        on_response: called after the response.

    Attributes:
        body: the body as far as it has arrived.
    """

    __slots__ = (
        "_default_headers", "_flow", "_gone", "_on_response", "_transport", "body", "disconnected", "endpoint", "keep_alive",
        "more_body", "response_complete", "scope",
    )  # fmt: skip

    def __init__(
        self, endpoint: Endpoint, scope: Scope, transport: asyncio.Transport, flow: FlowControl, keep_alive: bool,
        default_headers: list[tuple[bytes, bytes]], on_response: Callable[[], None],
    ) -> None:  # fmt: skip
        self.endpoint = endpoint
        self.scope = scope
        self.body = b""
        self.keep_alive = keep_alive
        self._transport = transport
        self._flow = flow
        self._default_headers = default_headers
        self._on_response = on_response
        self._gone: asyncio.Event | None = None
        self.more_body = False
        self.disconnected = False
        self.response_complete = False

    async def respond(self, response: Response) -> None:
        """Send the response, once the client has read enough of earlier ones. They would pile up otherwise."""
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if not self.disconnected:
            self._send(response)

    def _send(self, response: Response) -> None:
        body = response.body
        headers = [b"%b: %b\r\n" % header for header in (*self._default_headers, *response.headers)]
        end = b"%d\r\n\r\n" if self.keep_alive else b"%d\r\nconnection: close\r\n\r\n"
        head = b"".join((STATUS_LINE[response.status], *headers, _JSON_NO_STORE, end % len(body)))
        self.response_complete = True
        if len(body) < LARGE:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        if not self.keep_alive:
            self._transport.close()
        self._on_response()

    async def receive(self) -> dict[str, Any]:
        """Wait until the client has disconnected. It is the `receive` of ASGI after the body."""
        if not self.disconnected and not self.response_complete:
            if self._gone is None:
                self._gone = asyncio.Event()
            await self._gone.wait()
        return _DISCONNECT

    # --- as uvicorn's protocol uses it

    @property
    def message_event(self) -> Exchange:
        """What the protocol sets when the connection has ended."""
        return self

    def set(self) -> None:
        """Note that the connection has ended."""
        if self._gone is not None:
            self._gone.set()


Endpoint = Callable[[Exchange], Coroutine[Any, Any, None]]
"""Answers a request. It raises nothing."""
