"""Requests on their way to a server and back, by the standard library's HTTP in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from headrace.client.errors import error_of
from headrace.client.line import Line
from headrace.client.request import Answer, Request
from headrace.client.server import Server

T = TypeVar("T")

_MOST_AT_A_TIME = 16


class Transport(Protocol):
    """What a request is given to."""

    async def send(self, request: Request) -> Answer:
        """Have it answered. Raises the error that the answer tells, or `StoreUnavailable`."""

    def close(self) -> None:
        """Nothing more is sent."""


class Http:
    """Sends requests to one server, over connections that are kept.

    At most 16 requests are under way at a time. Who is cancelled while he waits for an answer hangs up, which the server notices.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._idle: list[Line] = []
        self._places = asyncio.Semaphore(_MOST_AT_A_TIME)

    async def send(self, request: Request) -> Answer:
        """Have it answered. Raises the error that the answer tells, or `StoreUnavailable`."""
        async with self._places:
            line = self._idle.pop() if self._idle else Line(self._server)
            try:
                heard = await _in_thread(lambda: line.ask(request))
            except asyncio.CancelledError:
                line.hang_up()
                raise
            self._idle.append(line)
        if not 200 <= heard.status < 300:
            raise error_of(self._server.url, heard.status, heard.reason, heard.body)
        return Answer(self._server.url, heard.status, heard.body)

    def close(self) -> None:
        """Close the connections that are kept."""
        while self._idle:
            self._idle.pop().close()


async def _in_thread(work: Callable[[], T]) -> T:
    """Call what blocks. Who is cancelled doesn't wait for it, and neither does the end of the process: the thread is a daemon."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="headrace client", daemon=True).start()
    return await future
