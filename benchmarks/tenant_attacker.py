"""A tenant, and strangers without a token, that attack a server at full speed: `python -m benchmarks.tenant_attacker PORT TOKEN`.

It prints a line when it has begun, and continues until it is killed.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel

from benchmarks.processes import stand_back

SLOW = "data.text regex '[ab]*a[ab]{16}c'"
"""A condition that is slow on the hostile tenant's messages."""

LARGE = 9_000_000
"""Bytes of a heavy body."""

STRANGERS = 1000
"""Connections of strangers that send bodies slowly."""

HOOK = "/v1/webhook/hook"
"""The webhook of a source without a signature."""

Call = Callable[..., Awaitable[tuple[int, Any]]]


def heavy_values() -> list[bytes]:
    """JSON that takes long to decode: backslashes, small arrays, small objects, floats."""
    return [
        b'"' + b"\\\\" * (LARGE // 2) + b'\\\\u0000"',
        *(b"[" + b",".join([one] * (LARGE // (len(one) + 1))) + b"]" for one in (b"[]", b'{"a":1}', b"1.5")),
    ]


def heavy_bodies() -> list[bytes]:
    """A body with each of these values, and one with more messages than allowed."""
    messages = b'{"messages":[' + b",".join([b'{"key":"k","data":1}'] * 400_000) + b"]}"
    return [*(b'{"key":"k","data":%b}' % value for value in heavy_values()), messages]


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
        for body in heavy_bodies():
            group.start_soon(
                _large_bodies, port, "/v1/streams/heavy/messages", body, {"authorization": f"Bearer {token}"}
            )
        form = {"content-type": "application/x-www-form-urlencoded"}
        for size in (LARGE, 900_000):
            group.start_soon(_large_bodies, port, HOOK, b"a=" + b"%41" * (size // 3), form)
        for number in range(STRANGERS):
            path = (HOOK, "/v1/webhook/nowhere", "/v1/session", "/nowhere")[number % 4]
            group.start_soon(_slow_stranger, port, path, LARGE if number % 25 == 0 else 1000)
        for _ in range(5):
            group.start_soon(_again_and_again, hostile, ("GET", "../../nowhere"), {})
        await anyio.sleep(1)
        print("attacking", flush=True)


async def _again_and_again(hostile: Call, request: tuple[Any, ...], query: dict[str, Any]) -> None:
    while True:
        with suppress(aiohttp.ClientError, OSError):
            await hostile(*request, **query)


async def _large_bodies(port: int, path: str, body: bytes, headers: dict[str, str]) -> None:
    """Send a large body repeatedly."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
        while True:
            with suppress(aiohttp.ClientError, OSError):
                async with session.post(path, data=body) as answer:
                    await answer.read()
            await anyio.lowlevel.checkpoint()


async def _slow_stranger(port: int, path: str, size: int) -> None:
    """Begin a body of so many bytes without a token, and send 30 bytes of it, or all but a tenth of a large one."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n\r\n"
    piece = b"x" * (30 if size < LARGE else size * 9 // 10)
    while True:
        with suppress(OSError, anyio.BrokenResourceError, anyio.EndOfStream):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(head.encode() + piece)
                while await stream.receive():
                    pass
        await anyio.sleep(1)


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
    stand_back()
    asyncio.run(attack(int(sys.argv[1]), sys.argv[2]))
