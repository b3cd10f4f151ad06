"""Load beside the console: `python -m benchmarks.console_load DSN STREAMS RATE` publishes and handles messages."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import anyio
import anyio.to_thread

from headrace import App, Message

ROUNDS = 4
"""Batches a second of each stream."""


async def work(dsn: str, streams: Sequence[str], rate: float) -> None:
    """Publish `rate` messages a second to all streams together, and handle them, until the end of the input. Prints how
    many were handled."""
    app, handled, published = App(dsn, max_connections=4), 0, 0

    async def handle(_: Message) -> None:
        nonlocal handled
        handled += 1

    for stream in streams:
        app.consumer(stream, name="c0")(handle)

    async def publish() -> None:
        nonlocal published
        each, number = max(1, round(rate / ROUNDS / len(streams))), 0
        begun = time.monotonic()
        while True:
            stream = streams[number % len(streams)]
            await app.publish_many(stream, [(f"{stream}.{one % 97}", {"number": one}) for one in range(each)])
            number += 1
            published += each
            await anyio.sleep(max(0.0, begun + number / ROUNDS / len(streams) - time.monotonic()))

    async with anyio.create_task_group() as group:
        group.start_soon(app.run)
        while not app.statistics():  # noqa: ASYNC110 - the app has no event for it
            await anyio.sleep(0.01)
        group.start_soon(publish)
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
        print(published, handled, flush=True)
        app.stop()
        group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(work, sys.argv[1], sys.argv[2].split(","), float(sys.argv[3]), backend_options={"use_uvloop": True})
