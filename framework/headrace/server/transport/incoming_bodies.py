"""Bodies that are being received. They have no separate timers. All of them are checked at an interval."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from headrace.server.http import Scope
from headrace.server.options import Options


class IncomingBodies:
    """The bodies that a server receives at a time.

    Args:
        options: how slowly they may arrive.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._bodies: set[IncomingBody] = set()
        self._checking = False

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[IncomingBody]:
        """Read a body in this context. If it is too slow, the context is left."""
        options, loop = self._options, asyncio.get_running_loop()
        incoming = IncomingBody(loop, options.body_timeout, options.min_body_rate)
        self._bodies.add(incoming)
        if not self._checking:
            self._checking = True
            loop.call_later(options.body_check_interval, self._check, loop)
        try:
            yield incoming
        except asyncio.CancelledError:
            if not incoming.was_late():
                raise
        finally:
            self._bodies.discard(incoming)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check all incoming bodies, and schedule the next check while there are any."""
        now = loop.time()
        for incoming in self._bodies:
            incoming.check(now)
        self._checking = bool(self._bodies)
        if self._checking:
            loop.call_later(self._options.body_check_interval, self._check, loop)


class IncomingBody:
    """An incoming body, and the task that waits for it."""

    __slots__ = ("_began", "_cancelling", "_late", "_loop", "_min_rate", "_progress_at", "_size", "_task", "_timeout")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float, min_rate: float) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task else 0
        self._timeout = timeout
        self._min_rate = min_rate
        self._began = self._progress_at = loop.time()
        self._size = 0
        self._late = False

    def add(self, size: int) -> None:
        """Record a piece of the body. An empty one is no progress."""
        if size:
            self._progress_at = self._loop.time()
            self._size += size

    def check(self, now: float) -> None:
        """Cancel the task if the next piece is late, or if the body as a whole is too slow."""
        due = min(self._progress_at + self._timeout, self._began + 2 * self._timeout + self._size / self._min_rate)
        if now > due and not self._late and self._task is not None:
            self._late = True
            self._task.cancel()

    def was_late(self) -> bool:
        """Return whether `check` caused the cancellation, and nothing else did."""
        return self._late and self._task is not None and self._task.uncancel() <= self._cancelling


def declared_size(scope: Scope) -> int | None:
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


def encoding_of(scope: Scope) -> bytes | None:
    """Return the encoding of a body, such as gzip, or None if it is sent as it is."""
    found = b", ".join(value for name, value in scope["headers"] if name == b"content-encoding").strip()
    return None if found.lower() in (b"", b"identity") else found
