"""A database in the middle of its work, and what its copies must do with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import asyncpg

from headrace import store
from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec, StreamSpec
from tests.support.readers import Clock, Reader, by_key, publish

HOLES = 170
"""Holes of one open transaction. They no longer fit into the cursor, so they are frozen."""


class Scene:
    """Streams and consumers with leases in flight, acks that no settle has folded in, retries, dead letters, blocked
    keys, holes of open transactions, and scheduled messages.

    Args:
        dsn: the URL of a database with the schema.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.clock = Clock()
        self.specs = {
            "ship": ConsumerSpec(stream="orders", name="ship", ack_wait=30, max_deliver=2, on_exhausted="block"),
            "audit": ConsumerSpec(stream="orders", name="audit", ack_wait=30),
            "show": ConsumerSpec(stream="prices", name="show", ack_wait=30),
        }
        self.ids: dict[str, int] = {}
        self.held: list[Batch] = []
        self.prepared = False
        self._open: list[Any] = []

    def reader(self, database: store.Database, name: str) -> Reader:
        """A reader for one of the consumers, in the original or in a copy."""
        return Reader(database, self.specs[name], self.ids[name], self.clock)

    async def set(self, database: store.Database, *, prepare: bool = False) -> None:
        """Bring the database into this state. Transactions that publish stay open until `end`.

        Args:
            prepare: prepare one of the open transactions, so that a physical copy has it, too.
        """
        await store.create_stream(database, "orders")
        await store.create_stream(database, StreamSpec(name="prices", one_message_per_key=True, dedupe=True))
        for name, spec in self.specs.items():
            self.ids[name] = (await store.declare_consumer(database, spec)).id
        ship = self.reader(database, "ship")
        await publish(database, *"abcdefghij")
        first = await ship.lease()
        await ship.ack(first, 1)
        async with database.transaction() as connection:
            await ship.ack_within(connection, first, 2)
        await ship.nack(first, 3, delay=60)
        await ship.reject(first, 4)
        self.held = [first]
        late, prepared = await self._begun(), await self._begun()
        await prepared.execute("select headrace.publish('orders', 'prepared', '{}')")
        for _ in range(HOLES):
            await late.execute("select headrace.publish('orders', 'late', '{}')")
            await publish(database, "between")
        await publish(database, "a", "d")
        for _ in range(3):
            self.held.append(await ship.lease("bob", limit=1000))
            await publish(database, "d")
            self.clock.advance(1.5)
        cursor = await ship.cursor()
        assert cursor["frozen"], "no holes are frozen, so part of the test has no point"
        assert cursor["mark_stamp"] is not None
        assert await ship.count("acks") == 1
        await publish(database, "x", "y", stream="prices")
        await self.reader(database, "show").drain(limit=1, calls=1)
        await publish(database, "x", stream="prices", again=True)
        if prepare:
            await prepared.execute("prepare transaction 'prepared'")
            self.prepared = True

    async def end(self, how: str = "commit") -> None:
        """Commit the transactions that are open in the original, which the copies don't have."""
        for connection in self._open:
            with suppress(asyncpg.PostgresError):  # one may be prepared
                await connection.execute(how)
            await connection.close()
        self._open.clear()

    async def give_up(self, database: store.Database) -> None:
        """Roll the prepared transaction back in a copy."""
        await database.fetch("rollback prepared 'prepared'")
        self.prepared = False

    async def goes_on(self, database: store.Database, *, already: Sequence[int] = ()) -> None:
        """Check that the consumers continue where they were: every message that was not acked is delivered once, in the
        order of its key, and nothing new lies before a consumer's position.

        Args:
            already: what `ship` got in the copy before.
        """
        ship, audit, show = (self.reader(database, name) for name in ("ship", "audit", "show"))
        assert await ship.count("leases") > 0
        before = await seqs(database)
        positions = [(await reader.cursor())["position"] for reader in (ship, audit)]
        await publish(database, *(f"new{n % 7}" for n in range(50)))
        drawn = [seq for seq in await seqs(database) if seq not in before]
        assert min(drawn) > max(*before, *positions)
        late = await asyncpg.connect(database.dsn)
        await late.execute("begin; select headrace.publish('orders', 'later', '{}')")
        await publish(database, "a", "new1")
        found = await self._drained(ship)
        if self.prepared:
            await database.fetch("commit prepared 'prepared'")
        await late.execute("commit")
        await late.close()
        self.clock.advance(40)
        found += await self._drained(ship)
        self.clock.advance(60)
        found += await self._drained(ship)
        assert await ship.redrive() == 1
        found += await self._drained(ship)
        everything = await seqs(database)
        assert sorted([*already, *found]) == [seq for seq in everything if seq not in (1, 2)]
        assert sorted(await self._drained(audit)) == everything
        assert sorted(await self._drained(show)) == [
            row["seq"]
            for row in await database.fetch("select seq from headrace_streams.prices where seq > 1 order by seq")
        ]
        await self._settled(database)
        for reader in (ship, audit):
            cursor = await reader.cursor()
            assert (str(cursor["holes"]), cursor["frozen"], await reader.count("frozen_holes")) == ("[]", [], 0)
            assert (await reader.info()).lag == 0
        assert await ship.count("acks") == 0
        assert await database.fetch("select * from headrace.sequences_behind()") == []

    async def _drained(self, reader: Reader) -> list[int]:
        """Lease and ack, with time between the calls in which holes can be forgotten. Checks the order of keys."""
        found: list[int] = []
        keys: dict[str, list[int]] = {}
        for _ in range(4):
            while (batch := await reader.lease("cid", limit=150)).lease_id is not None or batch.more:
                if batch.lease_id is not None:
                    found += batch.seqs
                    for key, among in by_key(batch).items():
                        keys.setdefault(key, []).extend(among)
                    assert await reader.ack_all(batch) == []
            self.clock.advance(1.5)
        assert all(among == sorted(among) for among in keys.values())
        assert len(found) == len(set(found))
        return found

    async def _settled(self, database: store.Database) -> None:
        """Let the lease calls resolve the last holes, beside transactions of others."""
        for _ in range(4):
            await publish(database, "z")
            for name in ("ship", "audit"):
                await self.reader(database, name).drain("cid")
            self.clock.advance(1.5)

    async def _begun(self) -> Any:
        connection = await asyncpg.connect(self.dsn)
        self._open.append(connection)
        await connection.execute("begin")
        return connection


async def seqs(database: store.Database) -> list[int]:
    """All messages of the stream `orders`."""
    return [row["seq"] for row in await database.fetch("select seq from headrace_streams.orders order by seq")]
