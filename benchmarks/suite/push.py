"""push: one server process sends a backlog to a local endpoint, one request per message."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import aiohttp
import anyio
import anyio.abc
import msgspec

from benchmarks import checks
from benchmarks.checks import CheckFailed
from benchmarks.harness import STREAM, Bench, Options, bench
from benchmarks.http_server import HEADRACE, serving
from benchmarks.payloads import SMALL_NOTE, Keys, bytes_of, order
from benchmarks.report import Result
from benchmarks.suite.filling import fill
from benchmarks.timing import Measured
from headrace import store
from headrace.model.push import Push
from headrace.model.specs import ConsumerSpec

KEYS = Keys(1000)
NAME = "push"
SECRET = "whsec_" + "a2V5" * 8
SENDERS = 32
TIMEOUT = 120.0
"""Seconds within which all messages must be delivered."""


class Received(msgspec.Struct, frozen=True):
    """The messages that the endpoint received, in order, and the time from the first to the last, in seconds."""

    bodies: list[bytes]
    seconds: float


async def push(options: Options) -> Result:
    """Send a backlog to a local endpoint from one server process, signed, one request per message."""
    count = options.count(30_000, 1_000)
    measured, proven = Measured(), list[str]()
    for _ in range(options.times(3, 1)):
        async with bench(options) as place:
            await fill(place, KEYS, count)
            received = await _pushed(place, count)
            proven = [*_check(received, count), await checks.settled(place.database, STREAM, NAME)]
            measured.samples.append(count / received.seconds)
            measured.limit_samples.append(await _bare(received.bodies))
    return Result(
        benchmark="push",
        about="messages pushed to a local endpoint by one server process, one by one and signed",
        measured=measured,
        limit_is=f"the same bodies POSTed by a bare aiohttp client, {SENDERS} at a time, without a stream",
        unit="deliveries/s",
        settings={
            "messages": count,
            "keys": KEYS.count,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "concurrency": "1 to 64, as the governor decides",
            "server_processes": 1,
            "repeats": options.times(3, 1),
        },
        checks=proven,
    )


async def _pushed(place: Bench, count: int) -> Received:
    """Deliver a backlog. The time is from the first request to the last, without the server's start."""
    async with _endpoint() as endpoint:
        spec = ConsumerSpec(stream=STREAM, name=NAME, push=Push(url=endpoint.url, secret=SECRET))
        await store.declare_consumer(place.database, spec)
        async with serving(HEADRACE, "--database", place.dsn, "--push-allow", "loopback"):
            with anyio.move_on_after(TIMEOUT) as late:
                while not await checks.is_settled(place.database, STREAM, NAME):  # noqa: ASYNC110 - the database is asked
                    await anyio.sleep(0.2)
            if late.cancelled_caught:
                raise CheckFailed(f"{count} messages were not delivered within {TIMEOUT:.0f} s.")
        return await endpoint.end()


def _check(received: Received, count: int) -> list[str]:
    """Check that each message came once, in the order of its key, as it was published."""
    decoder = msgspec.json.Decoder()
    encode = msgspec.json.Encoder().encode
    numbers = []
    for body in received.bodies:
        message = decoder.decode(body)["message"]
        number = message["data"]["number"]
        text = encode(order(number))
        if b'"data":' + text + b',"seq"' not in body or message["key"] != KEYS.key(number):
            raise CheckFailed(f"message {number} came altered: {body[:300]!r}")
        numbers.append(number)
    return [
        checks.exactly_once(numbers, count, NAME),
        checks.in_order(numbers, KEYS, NAME, awaits=False),
        f"{NAME}: each came byte for byte as it was published",
    ]


async def _bare(bodies: Sequence[bytes]) -> float:
    """Requests per second of a client that does nothing else."""
    async with _endpoint() as endpoint, aiohttp.ClientSession() as session:
        work = iter(bodies)

        async def send() -> None:
            for body in work:
                headers = {"content-type": "application/json", "webhook-id": "1", "webhook-timestamp": "1"}
                async with session.post(endpoint.url, data=body, headers=headers) as response:
                    await response.read()

        async with anyio.create_task_group() as group:
            for _ in range(SENDERS):
                group.start_soon(send)
        received = await endpoint.end()
    checks.expect(len(received.bodies), len(bodies), "requests of the bare client")
    return len(bodies) / received.seconds


class _Endpoint:
    def __init__(self, process: anyio.abc.Process, port: int, file: str) -> None:
        self._process = process
        self._file = file
        self.url = f"http://127.0.0.1:{port}/"

    async def end(self) -> Received:
        """Stop it, and return what it received."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()
        if await self._process.wait():
            raise CheckFailed(f"The endpoint ended with {self._process.returncode}.")
        result = await anyio.Path(self._file).read_bytes()
        times, _, bodies = result.partition(b"\n")
        first, last = map(int, times.split())
        return Received(bodies.split(b"\n"), (last - first) / 1e9)


@asynccontextmanager
async def _endpoint() -> AsyncIterator[_Endpoint]:
    with TemporaryDirectory() as directory:
        file = f"{directory}/bodies"
        process = await anyio.open_process(
            [sys.executable, "-m", "benchmarks.push_endpoint", file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
        )
        try:
            assert process.stdout is not None
            yield _Endpoint(process, int(await process.stdout.receive()), file)
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                await process.aclose()
