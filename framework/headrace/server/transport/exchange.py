"""A request of the data plane that has arrived in one piece, and its response, without ASGI.

Most requests of the data plane are so: a short head with common headers only, and a body that came with it. Such a
request needs no protection from slow clients, since it is complete. So it has no scope, queue and events of ASGI, and
its response is one write. All other requests go the ordinary way, and so does anything unusual about a head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headrace.server.http import PROTECTION, Response, Scope
from headrace.server.transport.heads import Head

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

_JSON = b"".join(
    (*(b"%b: %b\r\n" % header for header in PROTECTION), b"content-type: application/json\r\ncontent-length: ")
)
_DISCONNECT = {"type": "http.disconnect"}


FindEndpoint = Callable[[str, str], "Endpoint | None"]
"""Returns what answers requests with a method and a path. None if ASGI is to answer them."""


def is_common(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a head has common headers only, each of them once, and a host."""
    found = dict(headers)
    return len(found) == len(headers) and found.keys() <= COMMON_HEADERS and b"host" in found


def plain_head(
    parser: httptools.HttpRequestParser, url: bytes, headers: list[tuple[bytes, bytes]], find_endpoint: FindEndpoint
) -> Head | None:
    """Return the head of a request that needs no ASGI, as far as it says. None if it does.

    Args:
        parser: has parsed the head.
        url: the target of the request.
        headers: the headers, with lower-case names.
        find_endpoint: finds what answers it.
    """
    if len(url) > MAX_TARGET or not is_common(headers) or parser.get_http_version() != "1.1" or parser.should_upgrade():
        return None
    path, _, query = url.partition(b"?")
    if path[:1] != b"/" or b"%" in path or b"#" in url or not url.isascii():
        return None
    method, text = parser.get_method().decode("ascii"), path.decode("ascii")
    endpoint = find_endpoint(method, text)
    if endpoint is None:
        return None
    paths = {"path": text, "raw_path": path, "query_string": query}
    scope = {"type": "http", "http_version": "1.1", "method": method, **paths, "headers": headers}
    return Head(endpoint, scope)


class Exchange:
    """A request and its response. Beside its own methods it has what uvicorn's protocol uses of the current
    `RequestResponseCycle`.

    Args:
        head: what the request asks for.
        connection: the connection that it came from.
        body: the body as far as it has arrived.
        keep_alive: whether the connection stays open after the response.

    Attributes:
        began: when its answer began, for those without a task.
    """

    began: float

    __slots__ = (
        "_connection", "_gone", "_scope", "began", "body", "disconnected", "head", "keep_alive", "more_body", "response_complete",
    )  # fmt: skip

    def __init__(
        self, head: Head, connection: HttpToolsProtocol, body: bytes = b"", *, keep_alive: bool = True
    ) -> None:
        self.head = head
        self.body = body
        self.keep_alive = keep_alive
        self._connection = connection
        self._scope: Scope | None = None
        self._gone: asyncio.Event | None = None
        self.more_body = False
        self.disconnected = False
        self.response_complete = False

    @property
    def scope(self) -> Scope:
        """The parts of the ASGI scope that the application needs."""
        if self._scope is None:
            connection = self._connection
            ends = {"scheme": connection.scheme, "server": connection.server, "client": connection.client}
            self._scope = {**self.head.scope, **ends}
        return self._scope

    @property
    def must_wait(self) -> bool:
        """Whether a response must wait until the client has read earlier ones. They would pile up otherwise."""
        return self._connection.flow.write_paused and not self.disconnected

    async def respond(self, response: Response) -> None:
        """Send the response, once the client has read enough of earlier ones."""
        if self.must_wait:
            await self.client_has_read()
        self.respond_now(response)

    async def client_has_read(self) -> None:
        """Wait until the client has read enough of earlier responses, or has disconnected."""
        await self._connection.flow.drain()

    def respond_now(self, response: Response) -> None:
        """Send the response, unless the client has disconnected."""
        if self.disconnected:
            return
        connection, body = self._connection, response.body
        head = _head(connection.server_state.default_headers, response.status, response.headers)
        end = b"%d\r\n\r\n" if self.keep_alive else b"%d\r\nconnection: close\r\n\r\n"
        self.response_complete = True
        if len(body) < LARGE:
            connection.transport.write(head + end % len(body) + body)
        else:
            connection.transport.writelines((head + end % len(body), body))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in a task of this request."""
        task = self._connection.loop.create_task(coroutine)
        self._connection.tasks.add(task)
        task.add_done_callback(self._connection.tasks.discard)
        return task

    def begin_waiting(self, answer: asyncio.Future[Any]) -> None:
        """Count a future as the work of this request, until `end_waiting`. A server that ends waits for it, or cancels
        it."""
        self._connection.tasks.add(answer)  # type: ignore[arg-type]  # what is awaited and cancelled is like a task

    def end_waiting(self, answer: asyncio.Future[Any]) -> None:
        """Count it no more."""
        self._connection.tasks.discard(answer)

    @property
    def gone(self) -> bool:
        """Whether the client has disconnected, or is about to be."""
        return self.disconnected or self._connection.transport.is_closing()

    async def wait_for_disconnect(self) -> None:
        """Wait until the client has disconnected."""
        await self.receive()

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


Endpoint = Callable[[Exchange], Coroutine[Any, Any, None] | None]
"""Answers a request. It raises nothing. If it returns a coroutine, that answers it, in a task."""


@lru_cache(maxsize=1)
def _usual_head(date: tuple[tuple[bytes, bytes], ...], status: int) -> bytes:
    """The head of the usual response up to its length. It changes once a second, with the date."""
    return b"".join((STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in date), _JSON))


def _head(default_headers: list[tuple[bytes, bytes]], status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """The head of a response up to its length."""
    if status == 200 and not headers:
        return _usual_head(tuple(default_headers), status)
    lines = (b"%b: %b\r\n" % header for header in (*default_headers, *headers))
    return b"".join((STATUS_LINE[status], *lines, _JSON))
