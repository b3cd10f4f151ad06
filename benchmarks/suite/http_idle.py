"""Part of `http`: the cost of 200 clients that wait for messages of an idle stream."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio

from benchmarks import checks
from benchmarks.harness import STREAM, Options, bench
from benchmarks.http_client import Connection, request
from benchmarks.http_server import HEADRACE, serving
from benchmarks.processor_time import Meter, postmaster
from headrace import store
from headrace.model.specs import ConsumerSpec

WAITING = 200
SECONDS = 20.0
SETTLE = 3.0
"""Seconds between the last client's request and the start of the clock."""


class Waiter(Connection):
    """Waits for one message."""

    def __init__(self, seconds: float) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        super().__init__(self._fail)
        self._ask = request("GET", f"/v1/streams/{STREAM}/consumers/idle/receive?wait_for={seconds:.0f}s")

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def go_on(self) -> None:
        self.write(self._ask)

    def answered(self, body: bytes) -> None:
        self.answer.set_result(body)


async def idle(options: Options) -> dict[str, Any]:
    """The share of a core that the server uses while they wait. Checks that each of them was served in the end."""
    seconds = options.duration(SECONDS, 2)
    loop = asyncio.get_running_loop()
    async with bench(options) as place:
        spec = ConsumerSpec(stream=STREAM, name="idle", max_waiting=WAITING)
        await store.declare_consumer(place.database, spec)
        backend = await place.database.fetchval("select pg_backend_pid()")
        async with serving(HEADRACE, "--database", place.dsn) as server:
            waiters = [Waiter(10 * seconds + 60) for _ in range(WAITING)]
            for waiter in waiters:
                await loop.create_connection(lambda waiter=waiter: waiter, "127.0.0.1", server.port)  # type: ignore[misc]
                waiter.go_on()
            await anyio.sleep(SETTLE)
            meter = Meter(server=server.pid, postgres=postmaster(backend))
            await anyio.sleep(seconds)
            used = meter.read()
            checks.expect(sum(waiter.answer.done() for waiter in waiters), 0, "clients that were answered already")
            await store.publish_many(
                place.database, STREAM, [str(number) for number in range(WAITING)], ["1"] * WAITING
            )
            with anyio.fail_after(10):
                bodies = await asyncio.gather(*(waiter.answer for waiter in waiters))
            checks.expect(len({body for body in bodies if b'"ack_id"' in body}), WAITING, "clients that got a message")
            for waiter in waiters:
                waiter.close()
    return {
        "waiting": WAITING,
        "seconds": used["wall"],
        "server_share_of_a_core": used["server"] / used["wall"],
        "postgres_share_of_a_core": used.get("postgres", 0.0) / used["wall"],
        "checks": [f"{WAITING} clients waited all the while, and each got a message of its own in the end"],
    }
