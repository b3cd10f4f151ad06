"""The processes of a run: `python -m benchmarks.chaos.worker handlers --url …`.

`handlers` runs two consumers: `ship`, whose plain handler records each message in the process's trace, and `bill`, whose
transactional handler writes an effect. `publishers` publishes at the pace of its commands. Each obeys commands on standard input, one a line:

- `hold 5`: use all connections of the process for 5 seconds.
- `pace 400`: publish 400 messages a second from now on.
- `enough`: publish no more, and write `{"confirmed": {KEY: NUMBER}}` when the last publish has returned.

A process ends when its standard input is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio

from benchmarks.chaos.traces import Trace
from headrace import App, HeadraceError, Message, StoreUnavailable, Transaction, store
from headrace.model.outcomes import Settlement
from headrace.model.records import Lost
from tests.torture.worker import entered, report_event

CONSUMERS = ("ship", "bill")

CONNECTIONS = 12
"""Connections of one process."""

PUBLISHERS = 4
"""Publishers in the one process, each with separate keys."""

KEYS = 25
"""Keys of a publisher."""

LONGEST = 100
"""Messages of one publish at most."""

PAUSE = 0.02

BACKOFF = ["50ms", "200ms", "1s"]

EFFECTS = """
create schema if not exists headrace_chaos;
create table if not exists headrace_chaos.streams (name text primary key);
create table if not exists headrace_chaos.effects (
    id bigint generated always as identity primary key, run text not null, at float8 not null, key text not null, number int not null);
"""
"""`id` is in the order of effects of one key, since the next message of a key begins after the commit of the last one."""

_EFFECT = "insert into headrace_chaos.effects (run, at, key, number) values ($1, $2, $3, $4)"


class Commands:
    """The commands on standard input.

    Attributes:
        obey: called with the words of each line.
    """

    def __init__(self) -> None:
        self.obey: Callable[[list[str]], None] = lambda words: None
        self.closed = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self.obey(line.decode().split())
        self.closed.set()


async def handlers(options: argparse.Namespace, commands: Commands) -> None:
    trace = Trace(options.trace)
    _watch_settles(trace)
    app = App(options.url, max_connections=CONNECTIONS, shutdown_timeout="10s", telemetry=False)
    settings: dict[str, Any] = {"ack_wait": options.ack_wait, "max_deliver": -1, "backoff": BACKOFF}

    async def ship(message: Message) -> None:
        trace.handled(message.key, message.data["number"])

    async def bill(message: Message, tx: Transaction) -> None:
        await tx.execute(_EFFECT, options.stream, time.monotonic(), message.key, message.data["number"])

    app.consumer(options.stream, name="ship", concurrency=16, **settings)(ship)
    app.consumer(options.stream, name="bill", concurrency=8, transactional=True, **settings)(bill)
    holding: set[asyncio.Task[None]] = set()

    def hold(words: list[str]) -> None:
        for _ in range(2 * CONNECTIONS):
            task = asyncio.create_task(_hold(app, time.monotonic() + float(words[1])))
            holding.add(task)
            task.add_done_callback(holding.discard)

    async with entered(app.running):
        commands.obey = hold
        report_event(ready=True)
        await commands.closed.wait()


async def _hold(app: App, until: float) -> None:
    with suppress(HeadraceError):
        async with app.transaction() as tx:
            await tx.execute("select 1")
            await asyncio.sleep(until - time.monotonic())


def _watch_settles(trace: Trace) -> None:
    """Count the acks that the store refuses."""
    settle = store.settle

    async def watched(executor: store.Executor, consumer: int, settlement: Settlement, **more: Any) -> list[Lost]:
        lost = await settle(executor, consumer, settlement, **more)
        if lost:
            trace.refused(len(lost))
        return lost

    store.settle = watched


class Publishers:
    """Publish at a pace, and make up for missed times. A publish that fails is repeated with the same message ids until it
    returns."""

    def __init__(self, app: App, stream: str) -> None:
        self._app = app
        self._stream = stream
        self._numbers: Counter[str] = Counter()
        self._enough = asyncio.Event()
        self.pace(0.0)

    def pace(self, rate: float) -> None:
        """Publish so many messages a second from now on."""
        self._rate, self._since, self._count = rate, time.monotonic(), 0

    def obey(self, words: list[str]) -> None:
        if words[0] == "pace":
            self.pace(float(words[1]))
        else:
            self._enough.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for publisher in range(PUBLISHERS):
                group.create_task(self._publish(publisher))
        report_event(confirmed=self._numbers)

    async def _publish(self, publisher: int) -> None:
        turn = 0
        while not self._enough.is_set():
            due = min(int((time.monotonic() - self._since) * self._rate) - self._count, LONGEST)
            if due <= 0:
                await asyncio.sleep(PAUSE)
                continue
            self._count += due
            batch = []
            for _ in range(due):
                key = f"{publisher}.{turn % KEYS}"
                turn += 1
                self._numbers[key] += 1
                batch.append((key, {"number": self._numbers[key]}))
            await self._insist(batch)

    async def _insist(self, batch: list[tuple[str, dict[str, int]]]) -> None:
        ids = [f"{key}:{data['number']}" for key, data in batch]
        while True:
            try:
                await self._app.publish_many(self._stream, batch, message_ids=ids)
                return
            except StoreUnavailable:
                await asyncio.sleep(PAUSE)


async def publishers(options: argparse.Namespace, commands: Commands) -> None:
    app = App(options.url, max_connections=CONNECTIONS, telemetry=False)
    async with entered(lambda: app):
        work = Publishers(app, options.stream)
        commands.obey = work.obey
        report_event(ready=True)
        await work.run()
        await commands.closed.wait()


async def main(options: argparse.Namespace) -> None:
    await {"handlers": handlers, "publishers": publishers}[options.work](options, Commands())


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["handlers", "publishers"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--trace", default="")
    parser.add_argument("--ack-wait", default="2s")
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    anyio.run(main, parsed(), backend_options={"use_uvloop": True})
