"""When failed resyncs are tried again, and when tables are verified again. The tests pass in the time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import anyio
import pytest

from headrace import store
from headrace.model.errors import LeaseLost
from headrace.model.sources import SourceInfo
from headrace.sources.postgres.backfill.backfiller import VERIFY_INTERVAL, Backfiller
from headrace.sources.postgres.capture.schema_cache import SchemaCache
from headrace.sources.postgres.capture.table_watch import LONGEST_RETRY_DELAY, TableWatch
from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import catalog
from headrace.sources.postgres.held_capture import HeldCapture
from headrace.sources.postgres.spec import PostgresSpec
from tests.sources.postgres.captured import Shop
from tests.sources.postgres.connections import connected

pytestmark = pytest.mark.asyncio

TABLE = "public.orders"
NOW = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = 3600.0


class Watched:
    """A table watch of the shop's table under a capture lease, with a clock that the test sets."""

    def __init__(self, shop: Shop, connection: SourceConnection, source: SourceInfo) -> None:
        self.now = 0.0
        self._shop = shop
        self._connection = connection
        self._id = source.id

    @classmethod
    @asynccontextmanager
    async def opened(cls, shop: Shop) -> AsyncIterator[Watched]:
        source = await shop.source(backfill=True)
        [todo] = await store.captures_to_do(shop.database)
        async with connected(shop.dsn) as connection:
            watched = cls(shop, connection, source)
            epoch = await store.take_capture(shop.database, todo.number, uuid4(), LEASE)
            assert epoch is not None
            spec = PostgresSpec.stored(todo.name, todo.stream, todo.settings)
            watched._number, watched._epoch = todo.number, epoch
            watched._watch = TableWatch(
                HeldCapture(shop.database, todo.number, epoch), todo, spec, "p", SchemaCache(spec), lambda: watched.now
            )
            await watched._watch.find_tables(connection)
            await watched._watch.guard.prepare(connection, captured_before=False)
            await watched._watch.settle(connection)
            yield watched

    @asynccontextmanager
    async def _own_connection(self) -> AsyncIterator[SourceConnection]:
        yield self._connection

    async def is_requested(self, after: float) -> bool:
        """Look this many seconds later. Returns whether the table is to be read."""
        self.now += after
        await self._watch.look(self._connection, self._own_connection, anyio.Lock())
        return await store.next_backfill(self._shop.database, self._number) is not None

    async def fail(self) -> None:
        """Let the read of the table fail."""
        todo = await store.next_backfill(self._shop.database, self._number)
        assert todo is not None
        await store.fail_backfill(self._shop.database, self._number, self._epoch, todo.number, "It has no key.")

    async def succeed(self) -> None:
        """Let the read of the table end."""
        await self._shop.sql.execute("update headrace_internal.backfills set state = 'done' where state = 'queued'")

    @property
    def problems(self) -> list[str]:
        return [reason for reason, _ in self._watch.problems]

    _number: int
    _epoch: int
    _watch: TableWatch


async def test_a_failed_resync_is_requested_again_after_two_seconds_at_first_and_ten_minutes_at_most(
    shop: Shop,
) -> None:
    async with Watched.opened(shop) as watched:
        await watched.fail()
        assert not await watched.is_requested(after=0.0)
        assert watched.problems == [
            "Rows of public.orders are missing in the stream or differ, since the table could not be read. It has no key."
        ]
        delay = 2.0
        for _ in range(12):
            assert not await watched.is_requested(after=delay - 0.1)
            assert await watched.is_requested(after=0.1)
            await watched.fail()
            delay = min(2 * delay, LONGEST_RETRY_DELAY)
        assert delay == 600.0


async def test_the_note_of_a_failed_resync_stays_while_it_is_tried_again_and_the_next_failure_begins_with_two_seconds(
    shop: Shop,
) -> None:
    async with Watched.opened(shop) as watched:
        await watched.fail()
        await watched.is_requested(after=0.0)
        for delay in (2.0, 4.0):
            assert await watched.is_requested(after=delay)
            await watched.is_requested(after=0.0)
            assert len(watched.problems) == 1
            if delay == 2.0:
                await watched.fail()
                await watched.is_requested(after=0.0)
        await watched.succeed()
        assert not await watched.is_requested(after=3600.0)
        assert watched.problems == []
        await shop.sql.execute("alter table orders alter status type varchar(9)")
        assert await watched.is_requested(after=1.0)
        await watched.fail()
        assert not await watched.is_requested(after=0.0)
        assert not await watched.is_requested(after=1.9)
        assert await watched.is_requested(after=0.1)


async def test_each_table_is_verified_when_its_last_comparison_is_older_than_the_interval(shop: Shop) -> None:
    source = await shop.source()
    [todo] = await store.captures_to_do(shop.database)
    epoch = await store.take_capture(shop.database, todo.number, uuid4(), LEASE)
    assert epoch is not None
    every, names = 3600.0, [TABLE, "public.parts"]

    async def requested(after: float, *, epoch: int = epoch) -> list[tuple[str, str]]:
        """Return what is requested this many seconds later, and end it."""
        now = NOW + timedelta(seconds=after)
        await store.request_due_verifications(shop.database, todo.number, epoch, names, every, now=now)
        return sorted(
            (one.table, one.kind) for one in await store.backfills(shop.database, source.id) if one.state == "queued"
        )

    async def end(state: str) -> None:
        await shop.sql.execute("update headrace_internal.backfills set state = $1 where state = 'queued'", state)

    both = [(name, "verification") for name in names]
    assert await requested(0.0) == both
    assert await requested(2 * every) == both  # they have not ended
    await end("done")
    assert await requested(every - 1) == []
    assert await requested(every) == both
    await end("failed")
    assert await requested(2 * every - 1) == []
    await store.request_resync(shop.database, source.id, TABLE, "repair", None)
    await shop.sql.execute(
        "update headrace_internal.backfills set created_at = $1 where state = 'queued'",
        NOW + timedelta(seconds=1.5 * every),
    )
    await end("done")
    assert await requested(2 * every) == [("public.parts", "verification")]  # a repair compares, too
    await end("done")
    assert await requested(2.5 * every) == [(TABLE, "verification")]
    with pytest.raises(LeaseLost):
        await requested(10 * every, epoch=epoch + 1)


async def test_a_capturer_looks_for_due_verifications_every_ten_seconds(shop: Shop) -> None:
    source = await shop.source(verify_every=3600.0)
    [todo] = await store.captures_to_do(shop.database)
    epoch = await store.take_capture(shop.database, todo.number, uuid4(), LEASE)
    assert epoch is not None
    now, spec = 0.0, PostgresSpec.stored(todo.name, todo.stream, todo.settings)
    async with connected(shop.dsn) as connection:
        tables = await catalog.load_tables(connection, [TABLE])

        async def connect() -> SourceConnection:
            return connection

        capture = HeldCapture(shop.database, todo.number, epoch)
        backfiller = Backfiller(capture, spec, connect, lambda: tables, lambda: now)

        async def count(after: float) -> int:
            nonlocal now
            now += after
            await backfiller._look_after_verifications()
            return len(await store.backfills(shop.database, source.id))

        assert await count(0.0) == 1
        await shop.sql.execute("delete from headrace_internal.backfills")
        assert await count(VERIFY_INTERVAL - 0.1) == 0
        assert await count(0.1) == 1
