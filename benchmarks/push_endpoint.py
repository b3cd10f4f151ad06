"""The endpoint of `push`: `python -m benchmarks.push_endpoint FILE`. It is minimal, so that its cost is small.

It prints its port, answers every request with 204, and keeps the bodies. At the end of its input it
writes a file: the times of the first and the last request, and then the bodies, one per line.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import cast

import uvloop

_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
_LENGTH = b"content-length: "


class Endpoint(asyncio.Protocol):
    """One connection."""

    bodies: list[bytes] = []  # noqa: RUF012 - of all connections
    times: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        self._left = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's classes don't inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        text = self._left + data
        while (end := text.find(b"\r\n\r\n")) >= 0:
            head = text[:end].lower()
            place = head.index(_LENGTH) + len(_LENGTH)
            size = int(head[place:].split(b"\r\n", 1)[0])
            last = end + 4 + size
            if len(text) < last:
                break
            self.bodies.append(text[end + 4 : last])
            self.times.append(time.monotonic_ns())
            self._transport.write(_ANSWER)
            text = text[last:]
        self._left = text


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Endpoint, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    server.close()
    result = b"%d %d\n" % (min(Endpoint.times, default=0), max(Endpoint.times, default=0)) + b"\n".join(Endpoint.bodies)
    await loop.run_in_executor(None, Path(sys.argv[1]).write_bytes, result)


if __name__ == "__main__":
    uvloop.run(main())
