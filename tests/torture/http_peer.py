"""An HTTP client on a bare socket that can disconnect at any moment: while it waits, during an answer,
or before it acks.
"""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any


class Gone(Exception):
    """The server has disconnected. The outcome of the request is unknown."""


class Peer:
    """One HTTP connection. As an asynchronous context manager it is closed at the end.

    Args:
        port: The port of the server on this machine.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def __str__(self) -> str:
        return f"port {self._port}"

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.leave()

    def leave(self) -> None:
        """Disconnect immediately, whatever is in progress."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def send(self, method: str, path: str, body: Any = None) -> None:
        """Send a request without waiting for the answer. Raises `Gone`."""
        text = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(text)}\r\n\r\n"
        try:
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
            self._writer.write(head.encode() + text)
            await self._writer.drain()
        except OSError as error:
            self.leave()
            raise Gone from error

    async def head(self) -> tuple[int, int]:
        """Read the status and length of the answer, and leave its body unread. Raises `Gone`."""
        assert self._reader is not None
        try:
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            self.leave()
            raise Gone from error
        lengths = [int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")]
        return int(lines[0].split()[1]), lengths[0]

    async def answer(self) -> tuple[int, Any]:
        """Read an answer. Returns the status and the decoded body. Raises `Gone`."""
        status, length = await self.head()
        assert self._reader is not None
        try:
            return status, json.loads(await self._reader.readexactly(length))
        except (OSError, asyncio.IncompleteReadError) as error:
            self.leave()
            raise Gone from error

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request and read the answer. Raises `Gone`."""
        await self.send(method, path, body)
        return await self.answer()
