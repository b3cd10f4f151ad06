"""Rate limits: a consumer keeps its rate over all its workers, and no call waits for the limit
inside the database."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import store
from headrace.model.errors import ConfigurationError
from headrace.model.specs import ConsumerSpec
from tests.conftest import Declare
from tests.support.readers import Clock, Reader, publish


class Bucket:
    """A token bucket in plain Python."""

    def __init__(self, rate: float, burst: int | None) -> None:
        self.rate = rate
        self.burst = burst or max(1, math.ceil(rate))
        self.tokens = float(self.burst)

    def passed(self, seconds: float) -> None:
        self.tokens = min(self.burst, self.tokens + seconds * self.rate)

    def take(self, wanted: int) -> int:
        granted = min(wanted, math.floor(self.tokens + 1e-9))  # a millionth less than a whole token is no token
        self.tokens -= granted
        return granted

    @property
    def next_in(self) -> float:
        return max(0.0, 1 - self.tokens) / self.rate


@pytest.fixture
def loop(dsn: str) -> Iterator[tuple[asyncio.AbstractEventLoop, Any]]:
    """An event loop that runs synchronous examples, and a connection on it."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(asyncpg.connect(dsn))
    yield loop, connection
    connection.terminate()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    rate=st.sampled_from([0.1, 0.5, 1.0, 3.0, 7.5, 100.0]),
    burst=st.sampled_from([None, 1, 2, 10]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["ann", "bob"]),
            st.integers(1, 30),
            st.one_of(st.just(None), st.integers(0, 5_000_000)),  # microseconds, or None for `due_in`
        ),
        min_size=1,
        max_size=25,
    ),
)
def test_leases_follow_a_plain_token_bucket_for_any_owners(
    loop: tuple[asyncio.AbstractEventLoop, Any],
    rate: float,
    burst: int | None,
    steps: list[tuple[str, int, int | None]],
) -> None:
    async def run(connection: Any) -> None:
        spec = ConsumerSpec(stream="orders", name=f"{rate}-{burst}", rate_limit=rate, rate_burst=burst)
        await store.create_stream(connection, "orders")
        await connection.execute("delete from headrace_internal.consumers")
        clock = Clock()
        reader = Reader(connection, spec, (await store.declare_consumer(connection, spec)).id, clock)
        await publish(connection, *["a"] * (30 * len(steps)))
        bucket, due = Bucket(rate, burst), 0.0
        for who, wanted, microseconds in steps:
            pause = due if microseconds is None else microseconds / 1e6
            clock.now += timedelta(seconds=pause)
            bucket.passed(pause)
            granted = bucket.take(wanted)
            batch = await reader.lease(who, wanted)
            assert len(batch.seqs) == granted
            if granted < wanted:
                assert not batch.more
                assert batch.due_in is not None
                assert batch.due_in == pytest.approx(min(bucket.next_in, 30.0), abs=2e-6)
                due = batch.due_in
            await reader.ack_all(batch)

    run_on, connection = loop
    run_on.run_until_complete(run(connection))


@pytest.mark.asyncio
async def test_a_burst_then_the_rate(database: store.Database, declare: Declare) -> None:
    reader = await declare(rate_limit=10, rate_burst=3)
    await publish(database, *"abcdefgh")
    batch = await reader.lease("ann")
    assert (batch.seqs, batch.more, batch.due_in) == ([1, 2, 3], False, 0.1)
    batch = await reader.lease("bob")
    assert (batch.seqs, batch.more, batch.due_in) == ([], False, 0.1)
    reader.clock.advance(0.1)
    assert (await reader.lease("bob")).seqs == [4]
    reader.clock.advance(20)
    assert (await reader.lease("bob")).seqs == [5, 6, 7], "a pause saves up no more than the burst"


@pytest.mark.asyncio
async def test_the_burst_is_one_seconds_worth_and_at_least_one_message(
    database: store.Database, declare: Declare
) -> None:
    fast, slow = await declare("fast", rate_limit=2.5), await declare("slow", rate_limit=0.01)
    await publish(database, *"abcdefgh")
    assert (await fast.lease()).seqs == [1, 2, 3]
    batch = await slow.lease()
    assert (batch.seqs, batch.due_in) == ([1], 100)
    assert (await slow.lease()).due_in == 30, "when the lease expires, which is sooner"


@pytest.mark.asyncio
async def test_only_delivered_messages_cost_a_token(database: store.Database, declare: Declare) -> None:
    reader = await declare(rate_limit=2, rate_burst=4, filters=("wanted",))
    await publish(database, *["other"] * 50, "wanted", "wanted")
    batch = await reader.lease()
    assert (len(batch.seqs), batch.more) == (2, False)
    assert (await reader.lease()).lease_id is None
    await publish(database, *["wanted"] * 5)
    assert len((await reader.lease()).seqs) == 2


@pytest.mark.asyncio
async def test_a_redelivery_costs_a_token(database: store.Database, declare: Declare) -> None:
    reader = await declare(rate_limit=1, rate_burst=3)
    await publish(database, *"abc")
    await reader.nack(await reader.lease())
    assert (await reader.lease()).seqs == []
    reader.clock.advance(2)
    assert (await reader.lease()).seqs == [1, 2]


@pytest.mark.asyncio
async def test_an_empty_bucket_does_not_keep_leases_from_expiring(database: store.Database, declare: Declare) -> None:
    reader = await declare(rate_limit=0.01, ack_wait=30)
    await publish(database, "a")
    await reader.lease("ann")
    reader.clock.advance(30)
    batch = await reader.lease("bob")
    assert (batch.seqs, batch.due_in) == ([], 70)
    assert (await reader.info()).parked == 1


@pytest.mark.asyncio
async def test_a_clock_that_is_set_back_neither_fills_nor_stops(database: store.Database, declare: Declare) -> None:
    reader = await declare(rate_limit=1, rate_burst=2)
    await publish(database, *"abcdef")
    assert (await reader.lease(limit=1)).seqs == [1]
    reader.clock.advance(-3600)
    assert (await reader.lease()).seqs == [2]
    reader.clock.advance(1)
    assert (await reader.lease()).seqs == [3]


@pytest.mark.asyncio
async def test_the_rate_is_changed_and_taken_away_live(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcdefghijkl")
    assert (await reader.lease(limit=2)).seqs == [1, 2]
    await declare(rate_limit=1)
    assert (await reader.lease()).seqs == [3]
    changed = await store.declare_consumer(database, ConsumerSpec(stream="orders", name="ship", rate_limit=4.0))
    assert changed.changed == {"rate_limit": (1, 4.0)}
    spec, version = await store.consumer_spec(database, reader.id)
    assert (spec.rate_limit, spec.rate_burst, version) == (4.0, None, 3)
    reader.clock.advance(0.5)
    assert (await reader.lease()).seqs == [4, 5]
    await declare()
    assert len((await reader.lease()).seqs) == 7


@pytest.mark.asyncio
async def test_a_seek_does_not_fill_the_bucket(database: store.Database, declare: Declare) -> None:
    reader = await declare(rate_limit=1, rate_burst=2)
    await publish(database, *"abc")
    await reader.lease()
    await reader.seek(0)
    assert (await reader.lease()).seqs == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate_limit": 0}, "more than 0"),
        ({"rate_limit": math.inf}, "at most 1,000,000"),
        ({"rate_limit": math.nan}, "more than 0"),
        ({"rate_limit": 5, "rate_burst": 0}, "from 1 to"),
        ({"rate_burst": 5}, "needs a rate_limit"),
    ],
)
def test_invalid_rates_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        ConsumerSpec(stream="orders", name="ship", **given)
