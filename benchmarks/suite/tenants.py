"""tenants: one tenant publishes and receives at a steady pace, while another attacks the same server at full speed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import anyio

from benchmarks import checks
from benchmarks.harness import Options, bench
from benchmarks.http_server import HEADRACE, serving
from benchmarks.report import Result
from benchmarks.timing import Measured, milliseconds
from headrace.admin import Admin
from headrace.model.conditions import parse
from headrace.model.specs import ConsumerSpec

SECONDS = 120.0
"""Length of each of the two phases, undisturbed and disturbed."""

PACE = 0.02
"""Seconds between the beginnings of two rounds of the calm tenant."""

SLOW = "data.text regex '[ab]*a[ab]{16}c'"
"""A condition that is slow on the hostile tenant's messages."""

LONGEST_FACTOR = 2.0
"""How much longer the 99th percentiles may be while the other tenant attacks."""

Call = Callable[..., Awaitable[tuple[int, Any]]]


async def tenants(options: Options) -> Result:
    """Publish and receive as one tenant, undisturbed and then beside one that attacks."""
    seconds = options.duration(SECONDS, 3)
    async with bench(options) as place:
        admin = Admin(place.database)
        for stream in ("calm", "hostile"):
            await admin.create_stream(stream)
        await admin.create_consumer(ConsumerSpec(stream="calm", name="mine", max_ack_pending=100_000))
        for i in range(20):
            await admin.create_consumer(ConsumerSpec(stream="hostile", name=f"c{i}", where=parse(SLOW)))
        calm_token = (await admin.create_token("calm", ["publish:calm", "consume:calm"])).token
        hostile_token = (
            await admin.create_token("hostile", ["publish:hostile", "consume:hostile", "admin:hostile"])
        ).token
        async with (
            serving(HEADRACE, "--database", place.dsn) as server,
            _calling(server.port, calm_token) as calm,
            _calling(server.port, hostile_token) as hostile,
        ):
            await _fill(hostile)
            before = await _rounds(calm, seconds)
            async with _attacked(hostile, server.port, hostile_token):
                during = await _rounds(calm, seconds)
    figures = {
        name: {"publish": milliseconds(found["publish"]), "receive": milliseconds(found["receive"])}
        for name, found in (("undisturbed", before), ("attacked", during))
    }
    factors = {
        what: round(figures["attacked"][what]["p99_ms"] / figures["undisturbed"][what]["p99_ms"], 2)
        for what in ("publish", "receive")
    }
    if not options.quick:
        for what, factor in factors.items():
            checks.expect(factor <= LONGEST_FACTOR, True, f"the p99 of {what} is at most twice the undisturbed one")
    measured = Measured()
    measured.samples.append(len(during["publish"]) / seconds)
    measured.limit_samples.append(len(before["publish"]) / seconds)
    return Result(
        benchmark="tenants",
        about="rounds of publish, receive and ack of one tenant, while another one attacks the same server",
        measured=measured,
        limit_is="the same rounds without the other tenant",
        unit="rounds/s",
        settings={"seconds": seconds, "pace_s": PACE, "server_processes": 1},
        checks=["every call of the calm tenant was answered with 200", "every message was received once, in order"],
        details={**figures, "p99_factors": factors},
    )


@asynccontextmanager
async def _calling(port: int, token: str) -> AsyncIterator[Call]:
    """Yield a function that sends a request and returns the status and the decoded answer."""
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector, headers=headers) as session:

        async def call(method: str, path: str, body: Any = None, **query: Any) -> tuple[int, Any]:
            async with session.request(method, f"/v1/streams/{path}", json=body, params=query) as answer:
                return answer.status, await answer.json()

        yield call


async def _fill(hostile: Call) -> None:
    chance = random.Random(7)
    for i in range(40):
        body = {"key": f"k{i}", "data": {"text": "".join(chance.choices("ab", k=200_000))}}
        status, _ = await hostile("POST", "hostile/messages", body)
        checks.expect(status, 200, "the status of a publish")


async def _rounds(calm: Call, seconds: float) -> dict[str, list[int]]:
    """Publish, receive and ack again and again. Returns the nanoseconds that publish and receive took."""
    took: dict[str, list[int]] = {"publish": [], "receive": []}
    consumer = "calm/consumers/mine"
    end = time.monotonic() + seconds
    number = 0
    while (began := time.monotonic()) < end:
        number += 1
        at = time.perf_counter_ns()
        status, answer = await calm("POST", "calm/messages", {"key": "k", "data": number})
        published = time.perf_counter_ns()
        checks.expect(status, 200, "the status of a publish")
        status, answer = await calm("POST", f"{consumer}/receive", {"batch_size": 10, "wait_for": "10s"})
        received = time.perf_counter_ns()
        checks.expect(status, 200, "the status of a receive")
        checks.expect([one["message"]["data"] for one in answer["data"]], [number], "the messages received")
        status, _ = await calm("POST", f"{consumer}/ack", {"ack_ids": [one["ack_id"] for one in answer["data"]]})
        checks.expect(status, 200, "the status of an ack")
        took["publish"].append(published - at)
        took["receive"].append(received - published)
        await anyio.sleep(max(0.0, began + PACE - time.monotonic()))
    return took


@asynccontextmanager
async def _attacked(hostile: Call, port: int, token: str) -> AsyncIterator[None]:
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
    tasks = [
        asyncio.ensure_future(_again_and_again(hostile, request, query))
        for count, request, query in attacks
        for _ in range(count)
    ]
    tasks += [asyncio.ensure_future(_slow_body(port, token)) for _ in range(20)]
    tasks += [asyncio.ensure_future(_odd_connections(port)) for _ in range(5)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _again_and_again(hostile: Call, request: tuple[Any, ...], query: dict[str, Any]) -> None:
    while True:
        with suppress(aiohttp.ClientError, OSError):
            await hostile(*request, **query)


async def _slow_body(port: int, token: str) -> None:
    """Send bodies byte by byte."""
    head = f"POST /v1/streams/hostile/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: 1000\r\n\r\n"
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
