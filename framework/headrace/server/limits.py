"""Limits: what the requests of one server may take together, so that a crowd is told 503 and memory stays as it is.

Every request passes here, thousands a second, so a request costs two additions, and its body one entry in a set: the clock is not set for
each body, but looked at twice a second for all that are on their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.server.errors import RETRY_AFTER, Problem, reply_of
from headrace.server.http import ANSWER, Receive, Scope, Send
from headrace.server.options import Options

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

TICK = 0.5
"""Seconds between two looks at the bodies on their way."""

SLOWEST = 1000
"""Bytes a second that a body must come with on average, beyond the time that one piece may take."""

_HELD = "headrace.held"


class Limits:
    """The requests of one server.

    Args:
        options: how many there may be, how large, and how slow.

    Attributes:
        under_way: requests that are being worked on.
        waiting: requests that wait for messages, which count apart: each consumer's `max_waiting` bounds them.
        held: bytes of the bodies of both.
        refused: how many requests were refused since the start, by the status that they were told.
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
        """The application, behind the bound on requests under way."""

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
        """Around the wait for messages: it counts apart."""
        self.under_way -= 1
        self.waiting += 1
        try:
            yield
        finally:
            self.under_way += 1
            self.waiting -= 1

    def refuse(self, problem: Problem) -> Problem:
        """Count a refusal; returns it."""
        self.refused[problem.status] = self.refused.get(problem.status, 0) + 1
        return problem

    async def read_body(self, scope: Scope, receive: Receive) -> bytes:
        """The body of a request; afterwards `receive` has nothing to tell but that the client has gone. The bytes are held until the
        request is done.

        Raises:
            Problem: it is too large (413), comes too slowly (408), the server holds too many already (503), or the client has gone
                away before its end (400).
        """
        most = self.options.max_body
        declared = _declared(scope)
        if (
            declared is None and ANSWER in scope
        ):  # HTTP/1.1, parsed by ourselves: no body is announced, so there is none
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
        """Look at the bodies on their way, and again as long as there are any."""
        now = loop.time()
        for reading in self._reading:
            reading.judge(now)
        self._ticks = bool(self._reading)
        if self._ticks:
            loop.call_later(TICK, self._tick, loop)


class _Reading:
    """A body on its way, and the task that waits for it."""

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
        """A piece has come. An empty one is no progress."""
        if size:
            self._came = self._loop.time()
            self._size += size

    def judge(self, now: float) -> None:
        """Wake the task when nothing has come for too long, or too little all in all."""
        due = min(self._came + self._timeout, self._began + 2 * self._timeout + self._size / SLOWEST)
        if now > due and not self._late and self._task is not None:
            self._late = True
            self._task.cancel()

    def was_late(self) -> bool:
        """Whether a cancellation was by `judge`, and by nobody else."""
        return self._late and self._task is not None and self._task.uncancel() <= self._cancelling


def replay(body: bytes, receive: Receive) -> Receive:
    """What an application receives whose request's body has been read already: that, and then what comes after it."""
    told = False

    async def replayed() -> Any:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _declared(scope: Scope) -> int | None:
    """What content-length says, 0 for a body of unknown length, and None when no header speaks of a body. It is digits: the server's
    parser takes nothing else, and what another says is counted, too."""
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
