"""The processes of the torture run: `python -m tests.torture.promises.crew handlers --dsn …`.

`handlers` runs a consumer of each kind. `service` publishes and writes in transactions. `publishers`
publish. `clients` receive over HTTP. Each process records what it sees (`observed`), writes the events
that the parent waits for to standard output, and obeys commands on standard input, one a line:

- `die before 3`, `die after 3`: Kill this process right before it sends the third settle from now, or
right after its answer.
- `enough`: Publish no more than the requested number, and write `{"quiet": true}` when the last publish
has returned. Publishers write `{"reached": true}` when they reach the number, and continue.

A process ends when its standard input is closed. `handlers` ends once nothing is left to do.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import anyio
import asyncpg

from headrace import App, Message, Reject, Transaction, store
from headrace.model.outcomes import Settlement
from headrace.model.records import Lost
from headrace.runtime.messages.batch import Batch
from tests.torture.promises import sources
from tests.torture.promises.callers import Callers
from tests.torture.promises.history import RECEIPTS, STREAM
from tests.torture.promises.observed import Notes
from tests.torture.worker import entered, report_event

_WORK = "select judge.work($1, $2, $3, $4, $5, $6)"

BACKOFF = ["5ms", "20ms", "100ms"]


class Death:
    """Makes this process kill itself at a settle."""

    def __init__(self) -> None:
        self._when = ""
        self._left = 0

    def order(self, when: str, count: int) -> None:
        self._when, self._left = when, count

    def sent(self) -> None:
        """A settle is about to be sent."""
        self._left -= 1
        self._perhaps("before")

    def answered(self) -> None:
        self._perhaps("after")

    def _perhaps(self, when: str) -> None:
        if self._when == when and self._left <= 0:  # other settles may be in progress
            os.kill(os.getpid(), signal.SIGKILL)


def watch_settles(notes: Notes, death: Death) -> None:
    """Record which outcomes the store has accepted."""
    settle = store.settle

    async def watched(executor: store.Executor, consumer: int, settlement: Settlement, **more: Any) -> list[Lost]:
        death.sent()
        asked = time.time()
        lost = await settle(executor, consumer, settlement, **more)
        answered = time.time()
        refused = {(item.lease_id, item.seq) for item in lost}
        single = zip(settlement.leases, settlement.seqs, settlement.failures, strict=True)
        rows: list[tuple[Any, ...]] = [
            (lease, seq, failure.kind if failure else "ack", asked, answered)
            for lease, seq, failure in single
            if (lease, seq) not in refused
        ]
        rows += [(lease, None, "ack", asked, answered) for lease in settlement.whole if (lease, None) not in refused]
        notes.note("settled", rows)
        death.answered()
        return lost

    store.settle = watched


class Handlers:
    """A handler of each kind, all with the same effect. They sometimes fail, before the effect or after it."""

    def __init__(self, options: argparse.Namespace, notes: Notes) -> None:
        self.notes = notes
        self.name = options.name
        self.pace = options.pace
        self.failures = options.failures
        self.chance = random.Random(options.seed)
        self.pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def plain(self, message: Message) -> None:
        await self._around([message], "plain", None)
        if self.chance.random() < self.failures / 10:
            raise Reject("one for the dead letters")

    async def batch(self, batch: Batch) -> None:
        await self._around(batch.messages, "batch", None)
        if self.chance.random() < self.failures:
            batch.retry(self.chance.choice(batch.messages))

    async def key(self, batch: Batch) -> None:
        await self._around(batch.messages, "key", None)

    async def tx(self, message: Message, tx: Transaction) -> None:
        await self._around([message], "tx", tx)

    async def txbatch(self, batch: Batch, tx: Transaction) -> None:
        await self._around(batch.messages, "txbatch", tx)

    async def _around(self, messages: Any, kind: str, tx: Transaction | None) -> None:
        began = time.time()
        try:
            await self._work(messages, kind, tx)
        finally:
            keys, process = {m.key for m in messages}, f"{self.name} {os.getpid()}"
            self.notes.note("run", [(kind, key, process, began, time.time()) for key in keys])

    async def _work(self, messages: Any, kind: str, tx: Transaction | None) -> None:
        if self.chance.random() < self.failures / 2:
            raise RuntimeError("a failure before the effect")
        await anyio.sleep(self.chance.random() * 2 * self.pace)
        effect = (
            kind, self.name, [m.lease.id for m in messages], [m.seq for m in messages],
            [m.key for m in messages], [m.data["uid"] for m in messages],
        )  # fmt: skip
        if tx is None:
            assert self.pool is not None
            asked = time.time()
            await self.pool.execute(_WORK, *effect)
            answered = time.time()
            self.notes.note("worked", [(kind, m.seq, m.data["uid"], asked, answered) for m in messages])
        else:
            await tx.execute(_WORK, *effect)
            await tx.publish_many(RECEIPTS, [(m.key, {"uid": m.data["uid"]}) for m in messages])
        if self.chance.random() < self.failures / 2:
            raise RuntimeError("a failure after the effect")


async def handlers(options: argparse.Namespace, notes: Notes, stdin: Orders) -> None:
    """Run consumers of all kinds."""
    death = Death()
    watch_settles(notes, death)
    work = Handlers(options, notes)
    app = App(options.dsn, max_connections=options.connections, shutdown_timeout="10s")
    common: dict[str, Any] = {"ack_wait": options.ack_wait, "max_deliver": -1, "backoff": BACKOFF}
    for kind, settings in {
        "plain": {"concurrency": 16},
        "batch": {"batch": 100, "concurrency": 3, "max_ack_pending": 3000},
        "key": {"batch": 50, "group_by_key": True, "concurrency": 6, "max_ack_pending": 3000},
        "tx": {"transactional": True, "concurrency": 4},
        "txbatch": {"transactional": True, "batch": 50, "concurrency": 2},
    }.items():
        app.consumer(STREAM, filter=f"{kind}.>", name=kind, **common, **settings)(getattr(work, kind))
    # The effects use a separate connection, which no fault cuts. The test is about the recovery of the
    # framework, not of this pool.
    async with (
        asyncpg.create_pool(
            options.effects, min_size=0, max_size=8, statement_cache_size=0, command_timeout=5, timeout=5
        ) as work.pool,
        entered(app.running),
    ):
        stdin.obey = lambda words: death.order(words[1], int(words[2]))
        signals = asyncio.get_running_loop()
        signals.add_signal_handler(signal.SIGUSR1, lambda: report_event(statistics=app.statistics()))
        report_event(ready=True)
        await stdin.closed()
        await app.idle()


async def service(options: argparse.Namespace, notes: Notes, stdin: Orders) -> None:
    app = App(options.dsn, max_connections=options.connections)
    async with entered(lambda: app):
        await stdin.run_until_closed(sources.Service(app, notes, options))


async def publishers(options: argparse.Namespace, notes: Notes, stdin: Orders) -> None:
    app = App(options.dsn, max_connections=options.connections)
    async with entered(lambda: app):
        await stdin.run_until_closed(sources.Publishers(app, notes, options))


async def clients(options: argparse.Namespace, notes: Notes, stdin: Orders) -> None:
    await stdin.run_until_closed(Callers(notes, options))


class Orders:
    """The commands on standard input.

    Attributes:
        obey: Called with the words of each line.
    """

    def __init__(self) -> None:
        self.obey: Callable[[list[str]], None] = lambda words: None
        self._closed = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self.obey(line.decode().split())
        self._closed.set()

    async def closed(self) -> None:
        await self._closed.wait()

    async def run_until_closed(self, work: Any) -> None:
        """Run `work` until its standard input is closed. The command `enough` sets `work.enough`."""
        self.obey = lambda words: work.enough.set()
        report_event(ready=True)
        running = asyncio.create_task(work.run())
        closed = asyncio.create_task(self.closed())
        done, _ = await asyncio.wait([running, closed], return_when=asyncio.FIRST_COMPLETED)
        if running in done:
            running.result()
            report_event(quiet=True)
            await closed
        work.enough.set()
        await work.end()
        await running


async def main(options: argparse.Namespace) -> None:
    await WORKS[options.work](options, Notes(options.notes), Orders())


WORKS = {"handlers": handlers, "service": service, "publishers": publishers, "clients": clients}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--notes", required=True, help="the file for what is seen")
    parser.add_argument("--dsn", default="")
    parser.add_argument("--effects", default="", help="the URL for handlers' effects")
    parser.add_argument("--ports", default="", help="those of the HTTP servers, parted by commas")
    parser.add_argument("--ack-wait", default="2s")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--failures", type=float, default=0.02, help="the share of handler runs that fail")
    parser.add_argument("--pace", type=float, default=0.002, help="seconds that a handler takes in the mean")
    parser.add_argument("--rate", type=float, default=100.0, help="messages a second to publish")
    parser.add_argument("--count", type=int, default=0, help="messages to publish at least")
    parser.add_argument("--clients", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    anyio.run(main, parsed(), backend_options={"use_uvloop": True})
