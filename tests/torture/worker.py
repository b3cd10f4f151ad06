"""A worker process for the torture tests: `python -m tests.torture.worker river --dsn …`.

It tells the parent what happens in lines of JSON on standard output, and ends when its standard input is closed and
nothing is left to do. Its handlers write to tables of the test's own, through a pool of their own.
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
from headrace.runtime.message import Message

Work = Callable[["Bench", Message], Awaitable[None]]


def tell(**what: Any) -> None:
    """Tell the parent. One write for a line, so that a kill leaves no half of one."""
    os.write(1, json.dumps(what).encode() + b"\n")


class Bench:
    """What a handler works with."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.chance = random.Random(options.seed)
        self.pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def handle(self, message: Message) -> None:
        """Work a little, write the effect, and fail now and then: before it or after it."""
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
    """A message with an id of its publisher's."""
    await bench.write("select take_receipt($1, $2, $3)", message.seq, message.key, message.data["id"])


async def slow(_bench: Bench, message: Message) -> None:
    """A message that is worked on until the parent has seen enough."""
    tell(began=message.seq, attempt=message.attempt)
    await anyio.sleep(message.data["seconds"])
    tell(ended=message.seq, attempt=message.attempt)


WORKS: dict[str, Work] = {"river": river, "receipts": receipts, "slow": slow}


class Telltale(logging.Handler):
    """Tells the parent what Headrace logs, so that it can wait for it."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(logged=record.getMessage())


def watch_settles() -> None:
    """Tell the parent what the store answered to every settle."""
    settle = store.settle

    async def watched(executor: store.Executor, consumer: int, settlement: Settlement, **more: Any) -> list[Lost]:
        lost = await settle(executor, consumer, settlement, **more)
        tell(
            whole=settlement.whole,
            single=list(zip(settlement.leases, settlement.seqs, strict=True)),
            lost=[(item.lease_id, item.seq) for item in lost],
        )
        return lost

    store.settle = watched


@asynccontextmanager
async def entered(context: Callable[[], AbstractAsyncContextManager[object]]) -> AsyncIterator[None]:
    """An app at work, or connected. Its connection may be cut while it starts, which ends that: then it is started again, as by a
    supervisor."""
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
    # No cached statements: behind a pooler, and after a restart, they would not be what they were.
    async with (
        asyncpg.create_pool(
            options.dsn, min_size=0, max_size=4, statement_cache_size=0, command_timeout=10
        ) as bench.pool,
        entered(app.running),
    ):
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: tell(statistics=app.statistics()))
        tell(ready=True)
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
    logging.getLogger("headrace").addHandler(Telltale(logging.INFO))
    watch_settles()
    anyio.run(main, parsed(), backend_options={"use_uvloop": True})
