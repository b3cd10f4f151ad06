"""One of many worker processes: `python -m benchmarks.crowd_worker DSN STREAMS CONSUMERS`.

Its consumers record the latency of messages. At the end of its input it prints the record as a line
of JSON, and ends.
"""

from __future__ import annotations

import sys
import time
from array import array

import anyio
import anyio.to_thread
import msgspec

from benchmarks.payloads import Order
from headrace import App


class Handled(msgspec.Struct, frozen=True):
    """The messages that one worker has handled: when each message arrived, on the monotonic clock, and its latency,
    in ns."""

    at: list[int]
    took: list[int]


async def work(dsn: str, streams: list[str], consumers: int) -> None:
    app = App(dsn, max_connections=3)
    at, took = array("q"), array("q")

    async def handle(order: Order) -> None:
        now = time.monotonic_ns()
        at.append(now)
        took.append(now - order.at)

    for stream in streams:
        for number in range(consumers):
            app.consumer(stream, name=f"consumer-{number}")(handle)
    async with anyio.create_task_group() as group:
        group.start_soon(app.run)
        while not app.statistics():  # noqa: ASYNC110 - the app has no event for it
            await anyio.sleep(0.01)
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
        print(msgspec.json.encode(Handled(list(at), list(took))).decode(), flush=True)
        app.stop()


if __name__ == "__main__":
    anyio.run(work, sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), backend_options={"use_uvloop": True})
