"""A worker process for the torture tests: `python -m tests.torture.worker river --dsn …`.

It writes events to standard output as lines of JSON, and ends when its standard input is closed and
nothing is left to do. Its handlers write to the test's own tables, through a separate pool.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import asyncpg

from headrace import store
from headrace.app.app import App
from headrace.model.errors import StoreUnavailable
from headrace.model.outcomes import Settlement
from headrace.model.records import Lost
from headrace.runtime.messages.message import Message

Work = Callable[["Bench", Message], Awaitable[None]]


def report_event(**what: Any) -> None:
    """Write an event for the parent. Each line is one write, so that a kill leaves no partial line."""
    os.write(1, json.dumps(what).encode() + b"\n")


class Bench:
    """The resources of a handler."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.chance = random.Random(options.seed)
        self.pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def handle(self, message: Message) -> None:
        """Work a little, write the effect, and sometimes fail before the effect or after it."""
        if self.chance.random() < self.options.failures / 2:
            raise RuntimeError("a failure before the effect")
        await anyio.sleep(self.chance.random() * 2 * self.options.pace)
        await WORKS[self.options.work](self, message)
        if self.chance.random() < self.options.failures / 2:
            raise RuntimeError("a failure after the effect")

    async def write(self, statement: str, *args: Any) -> Any:
        assert self.pool is not None
        async with self.pool.acquire(timeout=5) as connection, connection.transaction():
            return await connection.fetchval(statement, *args)


async def river(bench: Bench, message: Message) -> None:
    """A file change."""
    change = message.data
    await bench.write("select apply_change($1, $2, $3, $4)", message.seq, change["path"], change["old"], change["new"])


async def receipts(bench: Bench, message: Message) -> None:
    """A message with the publisher's message id."""
    await bench.write("select take_receipt($1, $2, $3)", message.seq, message.key, message.data["id"])


async def slow(_bench: Bench, message: Message) -> None:
    """A message that is in work until the parent has seen enough."""
    report_event(began=message.seq, attempt=message.attempt)
    await anyio.sleep(message.data["seconds"])
    report_event(ended=message.seq, attempt=message.attempt)


WORKS: dict[str, Work] = {"river": river, "receipts": receipts, "slow": slow}


class EventLogHandler(logging.Handler):
    """A log handler that passes Headrace's log to the parent, so that the parent can wait for log lines."""

    def emit(self, record: logging.LogRecord) -> None:
        report_event(logged=record.getMessage())


def watch_settles() -> None:
    """Report the store's answer to every settle to the parent."""
    settle = store.settle

    async def watched(executor: store.Executor, consumer: int, settlement: Settlement, **more: Any) -> list[Lost]:
        lost = await settle(executor, consumer, settlement, **more)
        report_event(
            whole=settlement.whole,
            single=list(zip(settlement.leases, settlement.seqs, strict=True)),
            lost=[(item.lease_id, item.seq) for item in lost],
        )
        return lost

    store.settle = watched


@asynccontextmanager
async def entered(context: Callable[[], AbstractAsyncContextManager[object]]) -> AsyncIterator[None]:
    """Enter an app that works or is connected. A connection that is cut during the start ends the app,
    which is then started again, as by a supervisor.
    """
    async with AsyncExitStack() as stack:
        while True:
            try:
                await stack.enter_async_context(context())
            except StoreUnavailable as error:
                logging.info("once more: %s", error)
                await asyncio.sleep(0.1)
            else:
                break
        yield


async def standard_input_closed() -> None:
    closed = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(0, closed.set)
    await closed.wait()
    loop.remove_reader(0)


async def main(options: argparse.Namespace) -> None:
    bench = Bench(options)
    app = App(options.dsn, max_connections=options.connections, shutdown_timeout="10s")
    app.consumer(
        options.stream, name="work", concurrency=options.actors, ack_wait=options.ack_wait, max_deliver=-1,
        backoff=["5ms", "20ms", "50ms"],
    )(bench.handle)  # fmt: skip
    if options.until_signal:
        await app.run()
        return
    # No cached statements. Behind a pooler, and after a restart, they would be invalid.
    async with (
        asyncpg.create_pool(
            options.dsn, min_size=0, max_size=4, statement_cache_size=0, command_timeout=10
        ) as bench.pool,
        entered(app.running),
    ):
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: report_event(statistics=app.statistics()))
        report_event(ready=True)
        await standard_input_closed()
        await app.idle()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--ack-wait", default="1s")
    parser.add_argument("--actors", type=int, default=8)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--failures", type=float, default=0.0, help="the share of handler runs that fail")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a handler takes in the mean")
    parser.add_argument("--until-signal", type=bool, default=False)
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("headrace").addHandler(EventLogHandler(logging.INFO))
    watch_settles()
    anyio.run(main, parsed(), backend_options={"use_uvloop": True})
