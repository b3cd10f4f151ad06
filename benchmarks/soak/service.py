"""The programs of a soak: `python -m benchmarks.soak.service worker --url …`.

`worker` runs consumers of every kind, captures a table and declares schedules. `publisher` publishes in every way, and is the
operator who redrives, purges, seeks and replays. `clients` publish and receive over HTTP. Each writes how often it did what to
standard output as a line of JSON when its standard input is closed, and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio

from headrace import App, Message, StoreUnavailable, Transaction
from headrace.model.specs import ConsumerSpec
from headrace.runtime.messages.batch import Batch
from tests.torture.http_peer import Gone, Peer
from tests.torture.worker import entered, report_event, standard_input_closed

ORDERS, STATE, CHANGES, TICKS = "soak-orders", "soak-state", "soak-changes", "soak-ticks"

CONSUMERS = (
    (ORDERS, "ship"), (ORDERS, "bill"), (ORDERS, "flaky"), (ORDERS, "blocking"), (ORDERS, "seeker"), (ORDERS, "http"),
    (STATE, "project"), (CHANGES, "mirror"), (TICKS, "tick"),
)  # fmt: skip
"""The consumers, each with its stream."""

TABLES = """
create table soak_items (id int primary key, price int not null);
insert into soak_items select id, 0 from generate_series(1, 200) id;
create table soak_totals (key text primary key, total bigint not null) with (fillfactor = 50);
"""

KEYS = 300

_ADD = """
insert into soak_totals select key, count(*) from unnest($1::text[]) key group by key order by key
on conflict (key) do update set total = soak_totals.total + excluded.total
"""


def declare(app: App, did: Counter[str], seconds: float) -> None:
    """Declare streams, consumers, a capture and a schedule. Streams keep a twelfth of the run."""
    kept = max(5.0, seconds / 12)
    chance = random.Random(1)
    for stream in (ORDERS, CHANGES, TICKS):
        app.stream(stream, retain_up_to=kept, dedupe_window=min(120.0, kept))
    app.stream(STATE, one_message_per_key=True, tombstones=True)
    app.capture("public.soak_items", into=CHANGES)
    app.every("1s", TICKS, data={"kind": "tick"})

    @app.consumer(ORDERS, name="bill", batch=20, transactional=True)
    async def bill(batch: Batch, tx: Transaction) -> None:
        await tx.execute(_ADD, [message.key for message in batch.messages])
        did["bill"] += len(batch.messages)

    @app.consumer(ORDERS, name="flaky", max_deliver=2, backoff="100ms")
    async def flaky(message: Message) -> None:
        did["flaky"] += 1
        if chance.random() < 0.2:
            raise RuntimeError("one of five fails")

    @app.consumer(ORDERS, name="blocking", concurrency=4)
    def blocking(message: Message) -> None:
        did["blocking"] += 1
        time.sleep(0.001)

    def counting(name: str) -> Callable[[Message], Awaitable[None]]:
        async def handle(message: Message) -> None:
            did[name] += 1

        return handle

    for stream, name in CONSUMERS:
        if name in ("ship", "seeker", "project", "mirror", "tick"):
            app.consumer(stream, name=name)(counting(name))


async def worker(options: argparse.Namespace, did: Counter[str]) -> None:
    app = App(options.url, max_connections=10, shutdown_timeout="10s", telemetry=False)
    declare(app, did, options.seconds)
    async with entered(app.running):
        report_event(ready=True)
        await standard_input_closed()
        report_event(statistics=app.statistics())


class Publisher:
    """Publishes in every way, and operates."""

    def __init__(self, app: App, options: argparse.Namespace, did: Counter[str]) -> None:
        self._app = app
        self._did = did
        self._chance = random.Random(2)
        self._rate = options.rate
        self._every = max(1.0, options.seconds / 120)

    def work(self) -> dict[str, tuple[float, Callable[[], Awaitable[object]]]]:
        """The operations, with the times per second."""
        return {
            "single": (self._rate / 4, self.single),
            "batch of 20": (self._rate / 40, self.batch),
            "scheduled": (self._rate / 16, self.scheduled),
            "unique": (self._rate / 16, self.unique),
            "expiring": (self._rate / 16, self.expiring),
            "compacted": (self._rate / 8, self.compacted),
            "transaction": (self._rate / 20, self.transaction),
            "redrive": (1 / self._every, self.redrive),
            "purge": (0.5 / self._every, self.purge),
            "seek": (1 / self._every, self.seek),
            "replay": (1 / self._every, self.replay),
            "pause": (0.5 / self._every, self.pause),
        }

    async def repeat(self, name: str, rate: float, act: Callable[[], Awaitable[object]]) -> None:
        """Do one of these at a pace. Missed times are made up."""
        start, done = time.monotonic(), 0
        while True:
            if done >= (time.monotonic() - start) * rate:
                await asyncio.sleep(min(0.05, 1 / rate))
                continue
            done += 1
            with suppress(StoreUnavailable):
                await act()
                self._did[name] += 1

    def _message(self) -> tuple[str, dict[str, Any]]:
        return f"orders.{self._chance.randrange(KEYS)}", {"note": "x" * self._chance.choice((20, 200, 1000))}

    async def single(self) -> None:
        await self._app.publish(ORDERS, *self._message())

    async def batch(self) -> None:
        await self._app.publish_many(ORDERS, [self._message() for _ in range(20)])

    async def scheduled(self) -> None:
        await self._app.publish(ORDERS, *self._message(), delay=self._chance.uniform(0.5, 3))

    async def unique(self) -> None:
        await self._app.publish(ORDERS, *self._message(), unique_key=f"u{self._chance.randrange(KEYS)}")

    async def expiring(self) -> None:
        await self._app.publish(ORDERS, *self._message(), expires_in=2)

    async def compacted(self) -> None:
        data = None if self._chance.random() < 0.1 else {"value": self._chance.random()}
        await self._app.publish(STATE, f"state.{self._chance.randrange(KEYS)}", data)

    async def transaction(self) -> None:
        async with self._app.transaction() as tx:
            await tx.execute("update soak_items set price = price + 1 where id = $1", self._chance.randint(1, 200))
            await tx.publish(ORDERS, *self._message())

    async def redrive(self) -> None:
        await self._app.admin.redrive(ORDERS, "flaky")

    async def purge(self) -> None:
        await self._app.admin.purge(ORDERS, "flaky")

    async def seek(self) -> None:
        await self._app.admin.seek(ORDERS, "seeker", datetime.now(UTC) - timedelta(seconds=2))

    async def replay(self) -> None:
        await self._app.admin.replay(ORDERS, "ship", start_time=datetime.now(UTC) - timedelta(seconds=1))

    async def pause(self) -> None:
        await self._app.admin.pause(ORDERS, "seeker")
        await self._app.admin.resume(ORDERS, "seeker")


async def _until_closed(tasks: list[Awaitable[object]]) -> None:
    """Run endless tasks until standard input is closed. One that raises ends the process."""
    running = [asyncio.ensure_future(task) for task in tasks]
    closed = asyncio.ensure_future(standard_input_closed())
    report_event(ready=True)
    done, _ = await asyncio.wait([closed, *running], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def publisher(options: argparse.Namespace, did: Counter[str]) -> None:
    async with App(options.url, max_connections=12, telemetry=False) as app:
        work = Publisher(app, options, did)
        await _until_closed([work.repeat(name, *how) for name, how in work.work().items()])


async def clients(options: argparse.Namespace, did: Counter[str]) -> None:
    await _until_closed([_client(options, did) for _ in range(4)])


async def _client(options: argparse.Namespace, did: Counter[str]) -> None:
    """Publish one message, and receive and ack what there is. Now and then a message is rejected by a nack."""
    chance, at = random.Random(), f"/v1/streams/{ORDERS}"
    while True:
        async with Peer(options.port) as peer:
            with suppress(Gone):
                for _ in range(100):
                    await peer.ask("POST", f"{at}/messages", {"key": f"orders.{chance.randrange(KEYS)}", "data": {}})
                    did["http publish"] += 1
                    ask = {"batch_size": 100, "wait_for": 500}
                    _, answer = await peer.ask("POST", f"{at}/consumers/http/receive", ask)
                    if ids := [one["ack_id"] for one in answer["data"]]:
                        verb = "nack" if chance.random() < 0.02 else "ack"
                        await peer.ask("POST", f"{at}/consumers/http/{verb}", {"ack_ids": ids})
                        did[f"http {verb}"] += len(ids)


HTTP = ConsumerSpec(stream=ORDERS, name="http")


async def main(options: argparse.Namespace) -> None:
    did: Counter[str] = Counter()
    await {"worker": worker, "publisher": publisher, "clients": clients}[options.work](options, did)
    report_event(did=did)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["worker", "publisher", "clients"])
    parser.add_argument("--url", default="")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("headrace").setLevel(logging.ERROR)  # handlers fail on purpose, and each failure is a warning
    anyio.run(main, parsed(), backend_options={"use_uvloop": True})
