"""A tenant that attacks a server at full speed: `python -m benchmarks.tenant_attacker PORT TOKEN`.

It prints a line when it has begun, and continues until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio

SLOW = "data.text regex '[ab]*a[ab]{16}c'"
"""A condition that is slow on the hostile tenant's messages."""

Call = Callable[..., Awaitable[tuple[int, Any]]]


@asynccontextmanager
async def calling(port: int, token: str) -> AsyncIterator[Call]:
    """Yield a function that sends a request and returns the status and the decoded answer."""
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector, headers=headers) as session:

        async def call(method: str, path: str, body: Any = None, **query: Any) -> tuple[int, Any]:
            async with session.request(method, f"/v1/streams/{path}", json=body, params=query) as answer:
                return answer.status, await answer.json()

        yield call


async def attack(port: int, token: str) -> None:
    """Attack in many ways at the same time. Each attacker sends its next request as soon as it has an answer."""
    wide = {"name": "wide", "filters": [f"k{i}" for i in range(300_000)]}
    publish = {"messages": [{"key": f"k{i}", "data": i} for i in range(100)]}
    attacks: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = [
        (30, ("GET", "hostile/messages"), {"where": SLOW}),
        (10, ("GET", "hostile/messages"), {"limit": 10_000}),
        (10, ("GET", "hostile/consumers"), {}),
        (2, ("POST", "hostile/consumers", wide), {}),
        (20, ("POST", "hostile/messages", publish), {}),
        *((2, ("POST", f"hostile/consumers/c{i}/receive", {"batch_size": 1000}), {}) for i in range(20)),
    ]
    async with calling(port, token) as hostile, anyio.create_task_group() as group:
        for count, request, query in attacks:
            for _ in range(count):
                group.start_soon(_again_and_again, hostile, request, query)
        for _ in range(20):
            group.start_soon(_slow_body, port, token)
        for _ in range(5):
            group.start_soon(_odd_connections, port)
        await anyio.sleep(1)
        print("attacking", flush=True)


async def _again_and_again(hostile: Call, request: tuple[Any, ...], query: dict[str, Any]) -> None:
    while True:
        with suppress(aiohttp.ClientError, OSError):
            await hostile(*request, **query)


async def _slow_body(port: int, token: str) -> None:
    """Send bodies byte by byte."""
    head = f"POST /v1/streams/hostile/messages HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-length: 1000\r\n\r\n"
    while True:
        with suppress(OSError, anyio.BrokenResourceError):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(head.encode())
                for _ in range(100):
                    await stream.send(b" ")
                    await anyio.sleep(0.1)


async def _odd_connections(port: int) -> None:
    """Open connections, send what is no HTTP, and leave."""
    while True:
        with suppress(OSError, anyio.BrokenResourceError, anyio.EndOfStream):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(random.choice((b"\0" * 100, b"GET / HTTP/9.9\r\n\r\n", b"POST", b"\r\n" * 50)))
        await anyio.sleep(0.01)


if __name__ == "__main__":
    # An attacker has a separate machine. Here it shares the server's, so it takes only the processor time that nothing
    # else wants. Otherwise the benchmark would measure the kernel's scheduler.
    os.setsid()  # Linux divides time among sessions first, where the kernel groups processes by them
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19", encoding="ascii")
    asyncio.run(attack(int(sys.argv[1]), sys.argv[2]))
