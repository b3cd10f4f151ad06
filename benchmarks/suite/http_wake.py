"""Part of `http`: the time from a commit in another process until a waiting client has its answer."""

from __future__ import annotations

import asyncio
import time
from statistics import mean
from typing import Any

import anyio

from benchmarks import checks
from benchmarks.harness import STREAM, Options, bench
from benchmarks.http_client import Connection, request
from benchmarks.http_server import HEADRACE, serving
from benchmarks.timing import milliseconds
from headrace import store
from headrace.model.specs import ConsumerSpec

SECONDS = 46.5
PAUSES = (0.01, 0.3)
"""Seconds between an answer and the next commit: one while the server has just polled, one when it is idle."""


class Waiter(Connection):
    """Waits for a message, then for the next one."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[tuple[int, bytes] | Exception] = asyncio.Queue()
        super().__init__(self.answers.put_nowait)
        self._ask = request("GET", f"/v1/streams/{STREAM}/consumers/wake/receive?wait_for=60s")

    def go_on(self) -> None:
        self.write(self._ask)

    def answered(self, body: bytes) -> None:
        self.answers.put_nowait((time.perf_counter_ns(), body))


async def wake(options: Options) -> dict[str, Any]:
    """Percentiles of the time from the return of COMMIT, in another process than the server's, to the answer."""
    times = round(options.duration(SECONDS, 3) / mean(PAUSES))
    took: list[int] = []
    async with bench(options) as place:
        await store.declare_consumer(
            place.database,
            ConsumerSpec(stream=STREAM, name="wake", ordered=False, max_ack_pending=times, ack_wait=3600.0),
        )
        async with serving(HEADRACE, "--database", place.dsn) as server:
            waiter = Waiter()
            await asyncio.get_running_loop().create_connection(lambda: waiter, "127.0.0.1", server.port)
            for number in range(times):
                waiter.go_on()
                await anyio.sleep(PAUSES[number % len(PAUSES)])
                await store.publish(place.database, STREAM, "a.key", str(number))
                committed = time.perf_counter_ns()
                with anyio.fail_after(10):
                    answer = await waiter.answers.get()
                if isinstance(answer, Exception):
                    raise answer
                checks.expect(answer[1].count(b'"ack_id"'), 1, "messages in an answer")
                checks.expect(
                    f'"data":{number},'.encode() in answer[1], True, "the message that was published is the answer"
                )
                took.append(max(0, answer[0] - committed))
            waiter.close()
    return {
        "times": times,
        **milliseconds(took),
        "checks": ["each answer was the message that had just been committed"],
    }
