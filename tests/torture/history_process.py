"""The processes of the test of histories: `python -m tests.torture.history_process handlers --dsn …`.

`handlers` runs a consumer of each kind. `publishers` publishes until its standard input is closed. Their histories have all
of their actions, so they report nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import sys
from itertools import count
from typing import Any

import anyio
import anyio.lowlevel

from headrace import App, Message, Transaction
from headrace.model.errors import StoreUnavailable
from headrace.runtime.messages.batch import Batch
from tests.torture.worker import entered, report_event, standard_input_closed

STREAM, RECEIPTS = "orders", "receipts"

TABLES = "create table effects (consumer text not null, seq bigint not null)"

EFFECT = "insert into effects select $1, seq from unnest($2::bigint[]) as seq"

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"concurrency": 16},
    "key": {"batch": 50, "group_by_key": True, "concurrency": 8},
    "tx": {"transactional": True, "concurrency": 4},
    "txbatch": {"transactional": True, "batch": 100, "concurrency": 3},
}
"""The consumers. Each takes the keys that begin with its name."""

SHARES = {"plain": 10, "key": 10, "tx": 1, "txbatch": 10}
"""How many messages each of them gets in proportion."""

MAX_LAG = 20_000
"""Messages that publishers may be ahead of the slowest consumer."""

LAG = f"""
    select coalesce((select max(seq) from headrace_streams.{STREAM}), 0) - coalesce(min(position), 0) from (
        select distinct on (consumer_id) position from headrace_internal.cursors order by consumer_id, version desc) as cursors"""

KEYS = 40

MAX_BATCH = 60


class Handlers:
    """A handler of each kind. They sometimes fail."""

    def __init__(self, seed: int, failures: float) -> None:
        self.chance = random.Random(seed)
        self.failures = failures

    def perhaps_fail(self, messages: int = 1) -> None:
        if self.chance.random() < self.failures:
            raise RuntimeError("a failure")

    async def plain(self, message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        self.perhaps_fail()

    async def key(self, batch: Batch) -> None:
        await anyio.lowlevel.checkpoint()
        self.perhaps_fail()
        if self.chance.random() < self.failures:
            batch.retry(self.chance.choice(batch.messages))

    async def tx(self, message: Message, tx: Transaction) -> None:
        await tx.execute(EFFECT, "tx", [message.seq])
        self.perhaps_fail()
        await tx.publish(RECEIPTS, message.key, message.seq)

    async def txbatch(self, batch: Batch, tx: Transaction) -> None:
        await tx.execute(EFFECT, "txbatch", [message.seq for message in batch])
        self.perhaps_fail()
        await tx.publish_many(RECEIPTS, [(message.key, message.seq) for message in batch])


async def handlers(options: argparse.Namespace) -> None:
    work = Handlers(options.seed, options.failures)
    app = App(options.dsn, max_connections=10, shutdown_timeout="10s")
    for kind, settings in KINDS.items():
        app.consumer(
            STREAM, filter=f"{kind}.>", name=kind, ack_wait=options.ack_wait, max_deliver=-1, backoff=["5ms", "50ms"], **settings
        )(getattr(work, kind))  # fmt: skip
    async with entered(app.running):
        report_event(ready=True)
        await standard_input_closed()
        await app.idle()


async def publishers(options: argparse.Namespace) -> None:
    chance = random.Random(options.seed)
    kinds = [kind for kind, share in SHARES.items() for _ in range(share)]
    app = App(options.dsn, max_connections=3)
    async with entered(lambda: app):
        report_event(ready=True)
        closed = asyncio.create_task(standard_input_closed())
        loop = asyncio.get_running_loop()
        due, number = loop.time(), 0
        for turn in count(1):
            if closed.done():
                break
            size = chance.randint(1, MAX_BATCH)
            messages = [
                (f"{chance.choice(kinds)}.k{chance.randrange(KEYS)}", f"{os.getpid()}-{number + place}")
                for place in range(size)
            ]
            number += size
            due = max(due + size / options.rate, loop.time() - 1)
            try:
                while turn % 20 == 0 and await app.database.fetchval(LAG) > MAX_LAG:  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
                await publish(app, messages, chance)
            except StoreUnavailable:  # they may be there or not, and the next ones are others
                await asyncio.sleep(0.05)
            await asyncio.sleep(due - loop.time())
        await closed


async def publish(app: App, messages: list[tuple[str, str]], chance: random.Random) -> None:
    """Publish in one of the ways that there are."""
    way = chance.random()
    if way < 0.1:
        async with app.transaction() as tx:
            for key, data in messages[:5]:
                await tx.publish(STREAM, key, data)
            await tx.publish_many(STREAM, messages[5:])
            if way < 0.02:
                await asyncio.sleep(0.05)  # later ones become visible before
    elif way < 0.2:
        await app.publish(STREAM, *messages[0])
    else:
        await app.publish_many(STREAM, messages)


WORKS = {"handlers": handlers, "publishers": publishers}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--ack-wait", default="1s")
    parser.add_argument("--failures", type=float, default=0.002, help="the share of handler runs that fail")
    parser.add_argument("--rate", type=float, default=1000.0, help="messages a second that a process publishes")
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    chosen = parsed()
    anyio.run(WORKS[chosen.work], chosen, backend_options={"use_uvloop": True})
