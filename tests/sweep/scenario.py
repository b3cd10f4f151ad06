"""The scenarios of a sweep, and what must be true after each.

`Calls` makes the calls of the store, one after the other: open, publish in each way, lease, extend, settle, put back, handle
in transactions, close. `Few` makes some of them on connections that stay open, so it takes little time. `Service` is a whole
app: it starts, publishes, handles, and stops. `Batches` is one whose handlers take batches.

All do what the documentation asks of a user. A publish that raises is repeated with its `message_id`, `app.transaction()` is
repeated after `StoreUnavailable` and looked up after `InDoubt`, and an app that can't start is started again. Another process
handles what is left in flight when the leases are over. Here it does so at a time far ahead, so nothing waits.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg

from headrace import App, Message, Transaction, store
from headrace.model.errors import InDoubt, StoreUnavailable
from headrace.model.outcomes import Failure, Settlement
from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec
from headrace.runtime.messages.batch import Batch as MessageBatch
from headrace.runtime.messages.publisher import Publisher
from headrace.runtime.pipeline.timings import Timings
from tests.sweep.proxy import CountingProxy, counting

T = TypeVar("T")

STREAM, RECEIPTS = "orders", "receipts"

TABLES = """
    create table effects (seq bigint not null, uid text not null);
    create table notes (uid text not null)"""

TIMINGS = Timings(linger=0.002, last_settle=0.5)

WITHIN = 60.0
"""Seconds that one run may take."""

AHEAD = timedelta(hours=1)

Found = dict[str, list[str]]


class World:
    """A database with a stream and two consumers, which all runs of a lane use one after the other.

    Attributes:
        proxy: the way of the scenarios to it.
        observer: reaches it directly.
        consumers: their numbers, by name.
        database: one that scenarios leave open.
    """

    def __init__(self, proxy: CountingProxy, observer: store.Database) -> None:
        self.proxy = proxy
        self.observer = observer
        self.consumers: dict[str, int] = {}
        self.database = store.Database(proxy.url(), max_connections=2)
        self.runs = 0

    async def create(self) -> None:
        for stream in (STREAM, RECEIPTS):
            await store.create_stream(self.observer, stream)
        for name in ("plain", "tx"):
            declared = await store.declare_consumer(self.observer, ConsumerSpec(stream=STREAM, name=name))
            self.consumers[name] = declared.id
        for table in TABLES.split(";"):
            await self.observer.fetch(table)


@asynccontextmanager
async def world(dsn: str, through: Callable[[str], str] = str) -> AsyncIterator[World]:
    """A world in the database of this URL, which has the schema. `through` gives its URL through a pooler."""
    observer = store.Database(dsn, max_connections=3, application_name="observer")
    await observer.open()
    async with counting(through(dsn)) as proxy:
        made = World(proxy, observer)
        await made.create()
        try:
            yield made
        finally:
            await made.database.close()
            await observer.close()


class Run:
    """One run of a scenario.

    Attributes:
        world: where it runs.
        name: what the ids of its messages begin with.
        seen: the key and seq of each message that the plain handler got.
        messages: the key and the id of each message: one, two that are published at a time, and one of a transaction.
    """

    messages: tuple[tuple[str, str], ...] = (("a", "one"), ("a", "many-a"), ("b", "many-b"), ("b", "together"))

    def __init__(self, world: World) -> None:
        world.runs += 1
        self.world = world
        self.name = f"{world.runs}"
        self.seen: list[tuple[str, int]] = []
        self._published: set[str] = set()

    async def run(self) -> Found:
        """Run it, and the process that comes after it. Returns what was lost, out of order and doubled."""
        async with asyncio.timeout(WITHIN):
            await self.scenario()
            await self._take_over()
            return await self._judge()

    async def scenario(self) -> None:
        raise NotImplementedError

    # --- publishing

    def _uid(self, name: str) -> str:
        return f"{self.name}-{name}"

    async def publish(self, publisher: App | Publisher) -> None:
        """Publish all that is not confirmed, in each way."""
        await self._insist(
            lambda: publisher.publish(STREAM, *self._messages[0], message_id=self._messages[0][1]), "one"
        )
        if some := self._messages[1:-1]:
            await self._insist(
                lambda: publisher.publish_many(STREAM, some, message_ids=[uid for _, uid in some]), "many"
            )
        await self._insist(lambda: self._together(publisher), "together")

    @property
    def _messages(self) -> list[tuple[str, str]]:
        return [(key, self._uid(name)) for key, name in self.messages]

    async def _insist(self, act: Callable[[], Coroutine[Any, Any, Any]], name: str) -> None:
        if name not in self._published:
            await insist(act)
            self._published.add(name)

    async def _together(self, publisher: App | Publisher) -> None:
        """A row and a message that are committed together. If the commit is in doubt, the row tells."""
        key, uid = self._messages[-1]
        try:
            async with publisher.transaction() as tx:
                await tx.execute("insert into notes values ($1)", uid)
                await tx.publish(STREAM, key, uid)
        except InDoubt as error:
            if not await self._notes(uid):
                raise StoreUnavailable("It was not committed.") from error
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:  # of a statement before the commit
            raise StoreUnavailable("It was not committed.") from error

    async def _notes(self, uid: str) -> int:
        found: int = await self.world.observer.fetchval("select count(*) from notes where uid = $1", uid)
        return found

    # --- afterwards

    async def _take_over(self) -> None:
        """Another process handles what is left, when all leases are over."""
        observer, now = self.world.observer, datetime.now(UTC) + AHEAD
        for name, consumer in self.world.consumers.items():
            owner = uuid4()
            while (batch := await store.lease(observer, consumer, owner, 10, now=now)).lease_id or batch.more:
                for seq, key, data in zip(batch.seqs, batch.keys, batch.data, strict=True):
                    assert batch.lease_id is not None
                    async with observer.transaction() as connection:
                        if name == "plain":
                            self.seen.append((key, seq))
                        else:
                            await connection.execute("insert into effects values ($1, $2)", seq, json.loads(data))
                            await store.publish(connection, RECEIPTS, key, data)
                        await store.ack(connection, consumer, [batch.lease_id], [seq], now=now)

    async def _judge(self) -> Found:
        observer, mine = self.world.observer, f"{self.name}-"
        own = "where starts_with(data::text, $1)"
        rows = await observer.fetch(f"select seq, data::text from headrace_streams.{STREAM} {own}", f'"{mine}')
        receipts = await observer.fetch(f"select data::text from headrace_streams.{RECEIPTS} {own}", f'"{mine}')
        effects = await observer.fetch("select uid from effects where starts_with(uid, $1)", mine)
        left = await observer.fetchval("select count(*) from headrace_internal.leases")
        counted = {
            "published": Counter(json.loads(row["data"]) for row in rows),
            "receipts": Counter(json.loads(row["data"]) for row in receipts),
            "effects": Counter(row["uid"] for row in effects),
            "notes": Counter({self._messages[-1][1]: await self._notes(self._messages[-1][1])}),
        }
        lost = [f"no {what}: {uid}" for what, found in counted.items() for _, uid in self._messages if what != "notes" and not found[uid]]  # fmt: skip
        lost += [f"never handled: {row['seq']}" for row in rows if row["seq"] not in {seq for _, seq in self.seen}]
        lost += [f"{left} leases are left"] if left else []
        doubled = [f"{n} {what}: {uid}" for what, found in counted.items() for uid, n in found.items() if n != 1]
        return {"lost": lost, "out of order": out_of_order(self.seen), "doubled": doubled}


async def insist(act: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do something that may be repeated, until the database is available."""
    while True:
        try:
            return await act()
        except StoreUnavailable:
            await asyncio.sleep(0)


def out_of_order(seen: list[tuple[str, int]]) -> list[str]:
    """Messages that a handler got for the first time after a later message of its key, or for the last time after the last of that."""
    found = []
    for key in {key for key, _ in seen}:
        seqs: list[Any] = [seq for one, seq in seen if one == key]
        first, last = list(dict.fromkeys(seqs)), list(dict.fromkeys(reversed(seqs)))[::-1]
        found += [f"{key}: {seqs}"] if sorted(first) != first or sorted(last) != last else []
    return found


class Service(Run):
    """An app that starts, publishes, handles and stops."""

    async def scenario(self) -> None:
        while True:
            app = App(self.world.proxy.url(), max_connections=4, shutdown_timeout=1.0)
            app._timings = TIMINGS
            self._consume(app)
            with suppress(StoreUnavailable):
                async with app.running():
                    await self.publish(app)
                    await app.idle()
                return

    def _consume(self, app: App) -> None:
        app.consumer(STREAM, name="plain", concurrency=4, backoff="1ms")(self._plain)
        app.consumer(STREAM, name="tx", transactional=True, concurrency=2, backoff="1ms")(self._tx)

    async def _plain(self, message: Message) -> None:
        self.seen.append((message.key, message.seq))

    async def _tx(self, message: Message, tx: Transaction) -> None:
        await tx.execute("insert into effects values ($1, $2)", message.seq, message.data)
        await tx.publish(RECEIPTS, message.key, message.data)


class Batches(Service):
    """An app whose handlers take batches, one of them in a transaction."""

    def _consume(self, app: App) -> None:
        app.consumer(STREAM, name="plain", batch=10, group_by_key=True, concurrency=2, backoff="1ms")(self._plain_batch)
        app.consumer(STREAM, name="tx", batch=10, transactional=True, concurrency=2, backoff="1ms")(self._tx_batch)

    async def _plain_batch(self, batch: MessageBatch) -> None:
        self.seen += [(message.key, message.seq) for message in batch]

    async def _tx_batch(self, batch: MessageBatch, tx: Transaction) -> None:
        await tx.executemany("insert into effects values ($1, $2)", [(message.seq, message.data) for message in batch])
        await tx.publish_many(RECEIPTS, [(message.key, message.data) for message in batch])


class Calls(Run):
    """The calls of the store, as a worker makes them."""

    async def scenario(self) -> None:
        database = store.Database(self.world.proxy.url(), max_connections=2)
        await insist(database.open)
        try:
            await self.publish(Publisher(lambda: database, lambda stream, due: None, lambda: datetime.now(UTC)))
            await self._work(database)
            await self._work_in_transactions(database)
        finally:
            await database.close()

    async def _lease(self, database: store.Database, consumer: int, owner: Any, limit: int) -> Batch:
        """Lease. Leases of a call without an answer are released before the next one."""

        async def lease() -> Batch:
            await store.reclaim(database, consumer, owner, known)
            return await store.lease(database, consumer, owner, limit)

        known: list[int] = []
        return await insist(lease)

    async def _work(self, database: store.Database) -> None:
        """Lease, extend, put the first message back, and settle the others. Released messages are handled later."""
        consumer, owner, first = self.world.consumers["plain"], uuid4(), True
        while (batch := await self._lease(database, consumer, owner, 2)).lease_id is not None:
            alive = await insist(lambda lease=batch.lease_id: store.extend_leases(database, consumer, [lease]))  # type: ignore[misc]
            assert alive == [batch.lease_id]
            failed = {key for key in batch.keys[:1] if first}
            first = False
            outcomes: list[Failure | None] = [
                (Failure("retry") if place == 0 else Failure("release")) if key in failed else None
                for place, key in enumerate(batch.keys)
            ]
            self.seen += [
                (key, seq)
                for key, seq, outcome in zip(batch.keys, batch.seqs, outcomes, strict=True)
                if outcome is None or outcome.kind == "retry"
            ]
            leases = [batch.lease_id] * len(batch.seqs)
            settlement = Settlement(leases=leases, seqs=batch.seqs, failures=outcomes)
            await insist(lambda settlement=settlement: store.settle(database, consumer, settlement))  # type: ignore[misc]

    async def _work_in_transactions(self, database: store.Database) -> None:
        """Lease, and handle each message in a transaction with its ack. After the first that fails the rest is given up."""
        consumer, owner = self.world.consumers["tx"], uuid4()
        publisher = Publisher(lambda: database, lambda stream, due: None, lambda: datetime.now(UTC))
        while (batch := await self._lease(database, consumer, owner, 2)).lease_id is not None:
            for seq, key, data in zip(batch.seqs, batch.keys, batch.data, strict=True):
                try:
                    tx = await Transaction.begin(database, publisher, 30.0, assign=True)
                    try:
                        await tx.execute("insert into effects values ($1, $2)", seq, json.loads(data))
                        await tx.publish(RECEIPTS, key, json.loads(data))
                        acks = store.Acks(consumer, [batch.lease_id], [seq])
                        await tx.ack_and_commit(acks, "a commit", now=None, history=batch.history)
                    finally:
                        await tx.end()
                except (StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                    break


class Few(Calls):
    """Some of the calls, on connections that were open before."""

    messages = (("a", "one"), ("a", "together"))

    async def scenario(self) -> None:
        database = self.world.database
        await insist(database.open)
        await self.publish(Publisher(lambda: database, lambda stream, due: None, lambda: datetime.now(UTC)))
        await self._work(database)
        await self._work_in_transactions(database)


SCENARIOS: dict[str, type[Run]] = {"few": Few, "calls": Calls, "service": Service, "batches": Batches}
