"""Times are in UTC, whatever the time zone of the database. Before 1920 the clocks of Kathmandu were 5:41:16
ahead, an offset that RFC 3339 doesn't have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest
import pytest_asyncio

from headrace import store
from headrace.model.specs import ConsumerSpec
from tests.support.servers import opened

pytestmark = pytest.mark.asyncio

LONG_AGO = datetime(1900, 1, 1, tzinfo=UTC)


@pytest_asyncio.fixture
async def elsewhere(database: store.Database) -> AsyncIterator[store.Database]:
    name = await database.fetchval("select current_database()")
    await database.fetch(f"alter database {name} set timezone = 'Asia/Kathmandu'")
    async with opened(database.dsn) as elsewhere:
        assert await elsewhere.fetchval("show timezone") == "Asia/Kathmandu"
        yield elsewhere


async def test_where_a_consumer_began(elsewhere: store.Database) -> None:
    await store.create_stream(elsewhere, "orders")
    spec = ConsumerSpec(stream="orders", name="ship", deliver_policy="by_start_time", start_time=LONG_AGO)
    await store.declare_consumer(elsewhere, spec)
    found = await store.consumer(elsewhere, "orders", "ship")
    assert found.settings["start_time"] == "1900-01-01T00:00:00+00:00"


async def test_sources_captures_and_backfills(elsewhere: store.Database) -> None:
    await store.create_stream(elsewhere, "orders")
    await store.create_source(elsewhere, "orders", "postgres", "orders", {"tables": ["public.orders"]})
    (source,) = await store.sources(elsewhere)
    await store.start_backfill(elsewhere, source.id, "public.orders")
    (again,), (backfill,) = await store.sources_at_work(elsewhere)
    consumer = await _consumer(elsewhere)
    await store.pause(elsewhere, consumer, datetime(2100, 1, 1, tzinfo=UTC))
    paused = (await store.live_figures(elsewhere)).paused[consumer]
    for found in (source, again, backfill, paused):
        assert b"Z" in (text := msgspec.json.encode(found))
        assert b"+0" not in text


async def _consumer(database: store.Database) -> int:
    return (await store.declare_consumer(database, ConsumerSpec(stream="orders", name="ship"))).id
