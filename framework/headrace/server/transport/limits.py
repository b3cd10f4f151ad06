"""Limits on a server's concurrent requests. Requests above them get 503, so that memory use stays
bounded.

Every request passes here, thousands a second, so a request costs two additions, and its body one
entry in a set. Bodies have no timers of their own. All of them are checked twice a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.server.errors import RETRY_AFTER, Problem, reply_of
from headrace.server.options import Options
from headrace.server.transport.http import ANSWER, Receive, Scope, Send

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

TICK = 0.5
"""Interval in seconds at which incoming bodies are checked."""

SLOWEST = 1000
"""Lowest average rate of a body in bytes a second, apart from twice the time that one piece may take."""

_HELD = "headrace.held"


class Limits:
    """Counts and limits the requests of one server.

    Args:
        options: the limits of number, size and speed.

    Attributes:
        under_way: requests being processed.
        waiting: requests that wait for messages. They are counted separately, since each consumer's
            `max_waiting` limits them.
        held: bytes of the bodies of both.
        refused: refused requests since the start, by HTTP status.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.under_way = 0
        self.waiting = 0
        self.held = 0
        self.refused: dict[int, int] = {}
        self._reading: set[_Reading] = set()
        self._ticks = False

    def around(self, application: Application) -> Application:
        """Wrap an application in the limit of concurrent requests."""

        async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await application(scope, receive, send)
            if self.under_way >= self.options.max_requests:
                return await reply_of(self.refuse(_crowded(self.options.max_requests))).send(send)
            self.under_way += 1
            try:
                return await application(scope, receive, send)
            finally:
                self.under_way -= 1
                self.held -= scope.get(_HELD, 0)

        return bounded

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count a request as waiting for messages in this context."""
        self.under_way -= 1
        self.waiting += 1
        try:
            yield
        finally:
            self.under_way += 1
            self.waiting -= 1

    def refuse(self, problem: Problem) -> Problem:
        """Count a refusal. Returns it."""
        self.refused[problem.status] = self.refused.get(problem.status, 0) + 1
        return problem

    async def read_body(self, scope: Scope, receive: Receive) -> bytes:
        """Read the body of a request. After that, `receive` reports only that the client has
        disconnected.

        The bytes count as held until the request ends.

        Raises:
            Problem: the body is too large (413) or too slow (408), the server holds too many bytes
                (503), or the client has disconnected before the end of the body (400).
        """
        most = self.options.max_body
        declared = _declared(scope)
        if declared is None and ANSWER in scope:  # Headrace's own HTTP/1.1 parser, and no header announces a body
            return b""
        if declared is not None and declared > most:
            raise self.refuse(_too_large(most))
        pieces: list[bytes] = []
        size = 0
        reading = self._begin()
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem(400, "incomplete", "The client went away before the end of its body.")
                piece = message.get("body", b"")
                size += len(piece)
                if size > most:
                    raise self.refuse(_too_large(most))
                self._hold(scope, len(piece))
                if not message.get("more_body", False):
                    return piece if not pieces else b"".join((*pieces, piece))
                pieces.append(piece)
                reading.came(len(piece))
        except asyncio.CancelledError:
            if not reading.was_late():
                raise
        finally:
            self._reading.discard(reading)
        raise self.refuse(_too_slow(self.options.body_timeout))

    def _hold(self, scope: Scope, size: int) -> None:
        if size and self.held + size > self.options.max_held:
            raise self.refuse(_full())
        self.held += size
        scope[_HELD] = scope.get(_HELD, 0) + size

    def _begin(self) -> _Reading:
        loop = asyncio.get_running_loop()
        reading = _Reading(loop, self.options.body_timeout)
        self._reading.add(reading)
        if not self._ticks:
            self._ticks = True
            loop.call_later(TICK, self._tick, loop)
        return reading

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check all incoming bodies, and schedule the next check while there are any."""
        now = loop.time()
        for reading in self._reading:
            reading.judge(now)
        self._ticks = bool(self._reading)
        if self._ticks:
            loop.call_later(TICK, self._tick, loop)


class _Reading:
    """An incoming body, and the task that waits for it."""

    __slots__ = ("_began", "_came", "_cancelling", "_late", "_loop", "_size", "_task", "_timeout")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task else 0
        self._timeout = timeout
        self._began = self._came = loop.time()
        self._size = 0
        self._late = False

    def came(self, size: int) -> None:
        """Record a piece of the body. An empty one is no progress."""
        if size:
            self._came = self._loop.time()
            self._size += size

    def judge(self, now: float) -> None:
        """Cancel the task if the next piece is late, or if the body as a whole is too slow."""
        due = min(self._came + self._timeout, self._began + 2 * self._timeout + self._size / SLOWEST)
        if now > due and not self._late and self._task is not None:
            self._late = True
            self._task.cancel()

    def was_late(self) -> bool:
        """Return whether `judge` caused the cancellation, and nothing else did."""
        return self._late and self._task is not None and self._task.uncancel() <= self._cancelling


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns a body that was already read, and then what follows it."""
    told = False

    async def replayed() -> Any:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _declared(scope: Scope) -> int | None:
    """Return the content-length, 0 for a body of unknown length, and None if no header announces a
    body.

    Headrace's own parser only accepts digits. Under another web server the bytes are counted as
    they arrive.
    """
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 20 else 0
        if name == b"transfer-encoding":
            return 0
    return None


def _too_large(most: int) -> Problem:
    return Problem(
        413, "too_large", f"The body is larger than {most} bytes: send fewer messages at a time, or raise the server's --max-body."
    )  # fmt: skip


def _too_slow(timeout: float) -> Problem:
    return Problem(408, "too_slow", f"The body came too slowly: each piece of it may take {timeout:g} seconds.")


def _crowded(most: int) -> Problem:
    return Problem(
        503, "too_many_requests_under_way", f"{most} requests are under way: come again in a moment.",
        headers={"retry-after": RETRY_AFTER},
    )  # fmt: skip


def _full() -> Problem:
    return Problem(
        503, "too_much_under_way", "The server holds as much as it may of the bodies of requests: come again in a moment.",
        headers={"retry-after": RETRY_AFTER},
    )  # fmt: skip
