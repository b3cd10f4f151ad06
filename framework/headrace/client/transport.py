"""HTTP transport of the client. It uses the standard library's HTTP client in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from headrace.client.address import Server
from headrace.client.connection import TIMEOUT, Connection
from headrace.client.errors import error_of
from headrace.client.request import Request, Response

T = TypeVar("T")

MAX_CONNECTIONS = 16


class Transport(Protocol):
    """Sends requests and returns responses."""

    async def send(self, request: Request) -> Response:
        """Send a request and return the response. Raises the error of an error response, or `StoreUnavailable`."""

    def close(self) -> None:
        """Close the transport. It sends no more requests."""


class HttpTransport:
    """Sends requests to one server over persistent connections.

    At most 16 requests run at a time. If a caller is cancelled while it waits for a response, its
    connection is shut down, so that the server notices.

    Args:
        timeout: timeout of a response in seconds, in addition to the time that the call itself waits.
    """

    def __init__(self, server: Server, timeout: float = TIMEOUT) -> None:
        self._server = server
        self._timeout = timeout
        self._idle: list[Connection] = []
        self._limit = asyncio.Semaphore(MAX_CONNECTIONS)

    async def send(self, request: Request) -> Response:
        """Send a request and return the response. Raises the error of an error response, or `StoreUnavailable`."""
        async with self._limit:
            connection = self._idle.pop() if self._idle else Connection(self._server, self._timeout)
            try:
                response = await _in_thread(lambda: connection.send(request))
            except asyncio.CancelledError:
                connection.abort()
                raise
            self._idle.append(connection)
        if not 200 <= response.status < 300:
            raise error_of(response.server, response.status, response.reason, response.body)
        return response

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()


async def _in_thread(work: Callable[[], T]) -> T:
    """Call a blocking function in a daemon thread. Neither a cancelled caller nor the exit of
    the process waits for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def set_outcome(result: T | None, error: BaseException | None) -> None:
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
            loop.call_soon_threadsafe(set_outcome, result, error)

    threading.Thread(target=run, name="headrace client", daemon=True).start()
    return await future
