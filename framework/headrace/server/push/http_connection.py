"""One HTTP/1.1 connection to an endpoint, for one request at a time.

A client for POST requests whose response is a status, and little else. It follows no redirects, decompresses nothing, and
reads a bounded part of a response. httptools parses what comes. A general HTTP client takes several times as long for a
request, which is most of the time that a pushed message costs.
"""

from __future__ import annotations

import asyncio
from typing import cast

import httptools
import msgspec

from headrace.server.push.responses import is_ack

MAX_HEAD = 64_000
"""Largest head of a response, in bytes. It may be exceeded by what one read of the socket brings."""

MAX_BODY = 64_000
"""Largest part of a response's body that is read, in bytes. A connection with more to come is closed."""

BODY_TIMEOUT = 1.0
"""Seconds to read the body after a 2xx status, so that the connection can be reused. The status alone decides."""

_KEPT = (b"location", b"retry-after")


class RequestFailed(Exception):
    """There was no response, or something that is none."""


class Response(msgspec.Struct):
    """A response.

    Attributes:
        status: its status.
        phrase: its reason phrase.
        headers: those headers that are of use, by their names in lower case.
        body: its body, up to `MAX_BODY`. Empty if it did not come in time.
    """

    status: int
    phrase: str
    headers: dict[str, str]
    body: bytes


class HttpConnection(asyncio.Protocol):
    """A connection. Make it with `loop.create_connection`.

    Attributes:
        reusable: whether it takes another request. If not, it is closed.
        idle_since: when it had its last response, in seconds of the event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Response] | None = None
        self._timer: asyncio.TimerHandle
        self._until = 0.0
        self.reusable = True
        self.idle_since = 0.0
        self._begin()

    def _begin(self) -> None:
        """Begin to read a response."""
        self._status = 0  # until the head is complete
        self._head_size = self._body_size = 0
        self._phrase = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._hurried = False  # the body has its own time limit by now

    async def post(self, request: bytes, seconds: float) -> Response:
        """Send a request, and return the response. Cancelling closes the connection.

        Raises:
            RequestFailed: the connection was closed, or what came is no response.
            TimeoutError: no head of a response came within these seconds.
        """
        self._begin()
        self._answer = self._loop.create_future()  # no variable has it, or its error's traceback would lead back to it
        self._until = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._until, self._expire)
        self._transport.write(request)
        try:
            return await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None
            self._timer.cancel()
            self.idle_since = self._loop.time()

    def close(self) -> None:
        """Close the connection, whatever waits to be sent."""
        self.reusable = False
        self._transport.abort()

    def _expire(self) -> None:
        self._break_off(TimeoutError())

    def _break_off(self, error: Exception) -> None:
        """End a request whose response is not complete. If its status is known, that is enough."""
        if self._status:
            self._body.clear()
            self._finish(reusable=False)
        else:
            self._fail(error)

    def _finish(self, *, reusable: bool) -> None:
        # A response may come before its request was sent as a whole, and the rest must not be the beginning of the next.
        if not reusable or self._transport.get_write_buffer_size():
            self.close()
        if self._answer is not None and not self._answer.done():
            phrase = self._phrase.decode("utf-8", "replace")
            self._answer.set_result(Response(self._status, phrase, self._headers, b"".join(self._body)))

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's classes don't inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        """Read a part of a response."""
        answer = self._answer
        if answer is None or answer.done():  # nothing was asked, so what comes can belong to no request
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._finish(reusable=False)
        except httptools.HttpParserError as error:
            self._break_off(RequestFailed(f"the response is invalid: {error}"))  # public: of the endpoint
        if not answer.done():
            self._limit(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        """Take a response that ends with its connection. Without a status there is none."""
        if self._status and exc is None:
            self._finish(reusable=False)
        else:
            self._break_off(
                RequestFailed(str(exc or "") or "the endpoint closed the connection")
            )  # public: of the endpoint
        del self._parser  # it has this connection

    def _limit(self, size: int) -> None:
        """Bound the rest of a response after these many bytes of it."""
        if not self._status:
            self._head_size += size
            if self._head_size > MAX_HEAD:
                self._fail(RequestFailed("the response has too large a head"))
        elif self._body_size >= MAX_BODY:
            self._finish(reusable=False)
        elif is_ack(self._status) and not self._hurried:
            self._hurried = True
            self._timer.cancel()
            self._timer = self._loop.call_at(min(self._loop.time() + BODY_TIMEOUT, self._until), self._expire)

    # --- httptools' callbacks

    def on_message_begin(self) -> None:
        """Notice a second response to one request."""
        if self._answer is None or self._answer.done():
            self.close()

    def on_status(self, phrase: bytes) -> None:
        """Take a part of the reason phrase."""
        self._phrase += phrase

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, if it is of use."""
        if (lower := name.lower()) in _KEPT:
            self._headers[lower.decode()] = value.decode("utf-8", "replace")

    def on_headers_complete(self) -> None:
        """Take the status. Interim responses have none that counts."""
        status = self._parser.get_status_code()
        if status == 101 or not 100 <= status < 200:
            self._status = status

    def on_body(self, part: bytes) -> None:
        """Take a part of the body, up to the limit."""
        if (room := MAX_BODY - self._body_size) > 0:
            self._body.append(part[:room])
        self._body_size += len(part)

    def on_message_complete(self) -> None:
        """Answer the request, unless the response was an interim one."""
        if self._status:
            self._finish(reusable=self._parser.should_keep_alive() and self._body_size <= MAX_BODY)
        else:
            self._begin()
