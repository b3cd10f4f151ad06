"""HTTP transport of the client. It uses the standard library's HTTP in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from headrace.client.address import Server
from headrace.client.connection import Connection
from headrace.client.errors import error_of
from headrace.client.request import Answer, Request

T = TypeVar("T")

_MOST_AT_A_TIME = 16


class Transport(Protocol):
    """Sends requests and returns answers."""

    async def send(self, request: Request) -> Answer:
        """Send a request and return the answer. Raises the error of an error response, or `StoreUnavailable`."""

    def close(self) -> None:
        """Close the transport. It sends no more requests."""


class Http:
    """Sends requests to one server over persistent connections.

    At most 16 requests run at a time. A caller that is cancelled while it waits for an answer shuts
    the connection down, which the server notices.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._idle: list[Connection] = []
        self._places = asyncio.Semaphore(_MOST_AT_A_TIME)

    async def send(self, request: Request) -> Answer:
        """Send a request and return the answer. Raises the error of an error response, or `StoreUnavailable`."""
        async with self._places:
            line = self._idle.pop() if self._idle else Connection(self._server)
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
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()


async def _in_thread(work: Callable[[], T]) -> T:
    """Call a blocking function in a daemon thread. Neither a cancelled caller nor the exit of
    the process waits for it."""
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
