"""A raw HTTP client that can send anything at any speed, and a listener for any application."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import anyio
import msgspec

from headrace.server.asgi import Server
from headrace.server.options import Options
from headrace.server.transport.limits import Application, Limits
from headrace.server.transport.listener import Address, Listener

TIMEOUT = 20.0
"""Timeout for an answer in seconds."""


class Answer(NamedTuple):
    """A received answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The error code in the answer."""
        return str(msgspec.json.decode(self.body)["code"])


class Client:
    """A client with one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Send each argument as a separate piece, until the other side stops reading."""
        with suppress(ConnectionError):
            for piece in pieces:
                self._writer.write(piece)
                await self._writer.drain()
                await asyncio.sleep(0)

    async def head(self) -> bytes:
        """Read the head of the next answer, which is all of one to HEAD."""
        async with asyncio.timeout(TIMEOUT):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def answer(self) -> Answer:
        """Read the next answer."""
        head = (await self.head()).decode("latin-1").split("\r\n")
        async with asyncio.timeout(TIMEOUT):
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])
            }
            body = await self._reader.readexactly(int(headers["content-length"]))
        return Answer(int(head[0].split(" ")[1]), headers, body)

    async def ask(self, *pieces: bytes) -> Answer:
        """Send a request and read its answer."""
        await self.send(*pieces)
        return await self.answer()

    async def end(self) -> bytes:
        """Read everything until the other side closes the connection."""
        async with asyncio.timeout(TIMEOUT):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):  # the other side closed first
            await self._writer.wait_closed()


@asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    """A connection to a port of this machine."""
    name = None if tls is None else "localhost"
    client = Client(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def listening(application: Application, limits: Limits, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Run an application behind limits, or a server with its own, and yield its port."""
    if isinstance(application, Server):
        listener = Listener(application, limits, tls, application.find_endpoint)
    else:
        listener = Listener(limits.around(application), limits, tls)
    bound = Address("127.0.0.1", 0).bind()
    port = bound.getsockname()[1]
    await listener.open([bound])
    try:
        yield port
    finally:
        with anyio.CancelScope(shield=True):
            await listener.abort()


def request(body: bytes = b"", *headers: bytes, method: bytes = b"POST", path: bytes = b"/") -> bytes:
    """Return a request with a Content-Length header."""
    lines = [method + b" " + path + b" HTTP/1.1", b"host: localhost", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def echo(limits: Limits) -> Any:
    """An application that answers a body with its length. It reads bodies as the server does."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        from headrace.server.errors import error_response
        from headrace.server.http import Response

        try:
            body = await limits.read_body(scope, receive)
            response = Response(200, b"%d" % len(body))
        except Exception as error:
            response = error_response(error)
        await response.send(send)

    return application


def limits(**options: Any) -> Limits:
    """Return limits with these options."""
    return Limits(Options(**options))
