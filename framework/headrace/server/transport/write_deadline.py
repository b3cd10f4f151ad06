"""Deadline of a client that reads more slowly than the server writes."""

from __future__ import annotations

import asyncio


class WriteDeadline:
    """Aborts a connection whose client has read nothing for a time.

    Args:
        loop: the event loop.
        timeout: the time in seconds.
    """

    __slots__ = ("_loop", "_timeout", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self._loop = loop
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport) -> None:
        """Begin to check whether the client reads, unless that has begun."""
        if self._timer is None:
            self._check_later(transport, transport.get_write_buffer_size())

    def stop(self) -> None:
        """Check no more, since the client has read, or the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_later(self, transport: asyncio.Transport, remaining: int) -> None:
        self._timer = self._loop.call_later(self._timeout, self._check, transport, remaining)

    def _check(self, transport: asyncio.Transport, before: int) -> None:
        remaining = transport.get_write_buffer_size()
        if remaining >= before:
            transport.abort()
        else:
            self._check_later(transport, remaining)
