"""Samples for charts: taken of what changes, kept within bounds, and readable after a restart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from headrace import store
from headrace.model.specs import ConsumerSpec
from headrace.model.watching.samples import TIERS, Chart
from headrace.runtime.maintenance import sampler as module
from headrace.runtime.maintenance.sampler import Sampler
from headrace.store import Sample
from headrace.store.watching import samples

pytestmark = pytest.mark.asyncio

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


async def declare(database: store.Database, *names: str) -> list[int]:
    """Create streams with a consumer `ship` each. Returns the numbers of the consumers."""
    found = []
    for name in names:
        await store.create_stream(database, name)
        found.append((await store.declare_consumer(database, ConsumerSpec(stream=name, name="ship"))).id)
    return found


async def publish(database: store.Database, stream: str, count: int) -> None:
    await store.publish_many(database, stream, [f"k{n}" for n in range(count)], ["1"] * count, [None] * count)


async def rows(database: store.Database, step: int = 10) -> list[Any]:
    return await database.fetch(
        "select * from headrace_internal.samples where step = $1 order by at, kind, object_id", step
    )


async def chart(
    database: store.Database, kind: Any, number: int, seconds: float, *, now: datetime | None = None
) -> Chart:
    end = now or after(seconds)
    return await store.chart(database, kind, number, START, after(seconds), 1000, now=end)


async def test_rates_and_levels_are_those_of_the_interval(database: store.Database) -> None:
    (ship,) = await declare(database, "orders")
    sampler = Sampler(database)
    await sampler.tick(START)
    await publish(database, "orders", 50)
    await sampler.tick(after(10))
    await store.lease(database, ship, uuid4(), 20)
    await sampler.tick(after(20))
    stream = await chart(database, "stream", 1, 30)
    assert stream.series.publish_rate == [0.0, 5.0, 0.0]
    consumer = await chart(database, "consumer", ship, 30)
    assert consumer.series.lag == [None, 50.0, 30.0]
    assert consumer.series.in_flight == [None, 0.0, 20.0]
    assert consumer.series.lag_seconds[1:] == [0.0, 10.0]
    total = await chart(database, "total", 0, 30)
    assert total.series.publish_rate == [None, 5.0, 0.0]
    assert total.series.lag == [0.0, 50.0, 30.0]


async def test_what_does_not_change_has_no_samples_and_keeps_its_level(database: store.Database) -> None:
    orders, _ = await declare(database, "orders", "idle")
    sampler = Sampler(database)
    await publish(database, "orders", 5)
    for tick in range(4):
        await sampler.tick(after(10 * tick))
    assert [(row["kind"], row["object_id"]) for row in await rows(database) if row["kind"]] == [(2, orders)]
    found = await chart(database, "consumer", orders, 40)
    assert found.series.lag == [5.0, 5.0, 5.0, 5.0]
    assert found.series.finish_rate[1:] == [0.0, 0.0, 0.0]


async def test_a_time_without_samples_is_a_gap(database: store.Database) -> None:
    await declare(database, "orders")
    sampler = Sampler(database)
    await sampler.tick(START)
    await sampler.tick(after(30))
    assert (await chart(database, "total", 0, 40)).series.lag == [0.0, None, None, 0.0]


async def test_charts_survive_a_restart(database: store.Database) -> None:
    (ship,) = await declare(database, "orders")
    await publish(database, "orders", 5)
    await Sampler(database).tick(START)
    await publish(database, "orders", 5)
    await Sampler(database).tick(after(10))
    found = await chart(database, "consumer", ship, 20)
    assert found.series.lag == [5.0, 10.0]
    assert (await chart(database, "total", 0, 20)).series.publish_rate == [None, None]


async def test_a_tick_is_bounded_and_what_was_left_out_comes_first(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SAMPLED", 2)
    await declare(database, "a", "b", "c")
    sampler = Sampler(database)
    await sampler.tick(START)
    for name in ("a", "b", "c"):
        await publish(database, name, 7)
    assert await sampler.tick(after(10)) == 2 + 2 + 1
    assert await sampler.tick(after(20)) == 1 + 1 + 1
    assert await sampler.tick(after(30)) == 1
    published = [row["published"] for row in await rows(database) if row["kind"] == 1]
    assert published == [7, 7, 7]


async def test_old_samples_are_merged_without_losing_a_count(database: store.Database) -> None:
    for tick in range(0, 7200, 10):
        await store.record_samples(database, after(tick), [Sample(kind=0, number=0, published=3, lag=tick)])
    while await store.compact_samples(database, now=after(7200)):
        pass
    fine, coarse = await rows(database, 10), await rows(database, 60)
    assert (len(fine), len(coarse)) == (360, 60)
    assert sum(row["published"] for row in [*fine, *coarse]) == 3 * 720
    assert coarse[0]["lag"] == 50
    found = await chart(database, "total", 0, 7200, now=after(7200))
    assert (found.step, set(found.series.publish_rate)) == (60.0, {0.3})


async def test_merging_in_pieces_adds_up(database: store.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "BATCH", 4)
    for tick in range(0, 120, 10):
        await store.record_samples(database, after(tick), [Sample(kind=0, number=0, published=1)])
    while await store.compact_samples(database, now=after(7200)):
        pass
    assert [row["published"] for row in await rows(database, 60)] == [6, 6]


async def test_samples_have_a_bound_in_time_and_in_rows(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tuple(type(tier)(tier.step, tier.kept, 20) for tier in TIERS)
    monkeypatch.setattr(samples, "TIERS", small)
    for tick in range(0, 1000, 10):
        await store.record_samples(database, after(tick), [Sample(kind=0, number=0, published=1)])
    await store.compact_samples(database, now=after(1000))
    assert [row["at"] for row in await rows(database)] == [after(tick) for tick in range(800, 1000, 10)]
    for days in (1, 3, 9):
        while await store.compact_samples(database, now=after(86_400 * days)):
            pass
    assert await database.fetchval("select count(*) from headrace_internal.samples") == 0


async def test_a_chart_has_no_more_points_than_asked_for(database: store.Database) -> None:
    for length in (59, 3600, 86_399, 604_800):
        for points in (2, 7, 180):
            found = await store.chart(database, "total", 0, after(-length), START, points, now=START)
            assert len(found.at) <= points + 1
            assert len(found.at) == len(found.series.lag)


async def test_a_rewound_history_is_no_negative_rate(database: store.Database) -> None:
    await declare(database, "orders")
    await publish(database, "orders", 50)
    sampler = Sampler(database)
    await sampler.tick(START)
    await database.fetchval("select setval((select sequence from headrace_internal.streams)::regclass, 10)")
    await sampler.tick(after(10))
    assert [row["published"] for row in await rows(database) if row["kind"] == 1] == [0]
