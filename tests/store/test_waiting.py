"""What waits for a consumer: the key that most of it has, the last error, and what is published and finished."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headrace import store
from headrace.admin import Admin
from headrace.admin.live.database import LiveDatabase
from headrace.model import conditions
from headrace.model.outcomes import Failure
from headrace.model.watching.diagnosis import Waiting
from headrace.store.watching.samples import Sample
from tests.conftest import Connect, Declare
from tests.support.readers import Reader, begun, publish

pytestmark = pytest.mark.asyncio


async def _sample(reader: Reader) -> Waiting:
    return (await store.waiting_samples(reader.executor, [reader.id]))[reader.id]


def _of_keys(found: Waiting) -> tuple[str | None, int, int]:
    return found.key, found.of_key, found.examined


async def test_the_key_of_most_messages_is_found_wherever_they_wait(declare: Declare) -> None:
    reader = await declare(backoff=3600)
    assert _of_keys(await _sample(reader)) == (None, 0, 0)
    await publish(reader.executor, *"aaabaac")
    assert _of_keys(await _sample(reader)) == ("a", 5, 7)  # above the position
    batch = await reader.lease(limit=1)
    await reader.lease("bob", limit=2)  # the others of its key wait behind it
    assert _of_keys(await _sample(reader)) == ("a", 5, 7)
    await reader.nack(batch, delay=3600)
    assert _of_keys(await _sample(reader)) == ("a", 5, 7)


async def test_a_consumer_without_order_has_no_key(declare: Declare) -> None:
    reader = await declare(ordered=False)
    await publish(reader.executor, *"aaaa")
    assert _of_keys(await _sample(reader)) == (None, 0, 0)


async def test_filters_of_keys_count_and_conditions_are_not_evaluated(declare: Declare) -> None:
    reader = await declare(filters=["a"], where=conditions.parse("data.n < 0"))
    await publish(reader.executor, *"abbba")
    assert _of_keys(await _sample(reader)) == ("a", 2, 2)


async def test_the_failure_is_that_of_the_last_attempt(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, *"abc")
    batch = await reader.lease()
    await reader.fail(batch, Failure("retry", 60.0, "first", None, "E"), 1)
    reader.clock.advance(1)
    await reader.fail(batch, Failure("retry", 60.0, "second", None, "E"), 2)
    await reader.release(batch, 3)
    found = await _sample(reader)
    assert (found.retries, found.error, found.failed_at) == (2, "second", reader.clock.now)


async def test_rates_are_those_of_the_last_samples_of_the_charts(declare: Declare) -> None:
    reader = await declare()
    now = datetime.now(UTC).replace(microsecond=0)
    assert (await _sample(reader)).publish_rate is None
    [(stream,)] = await reader.executor.fetch(
        "select stream_id from headrace_internal.consumers where id = $1", reader.id
    )
    samples = [Sample(kind=0, number=0), Sample(kind=1, number=stream, published=50)]
    await store.record_samples(reader.executor, now - timedelta(seconds=10), samples)
    found = await _sample(reader)
    assert (found.publish_rate, found.finish_rate) == (5.0, 0.0)  # the consumer did not change
    later = (await store.waiting_samples(reader.executor, [reader.id], now=now + timedelta(minutes=1)))[reader.id]
    assert (later.publish_rate, later.finish_rate) == (None, None)


async def test_a_consumer_that_was_deleted_has_no_sample(declare: Declare) -> None:
    reader = await declare()
    await store.delete_consumer(reader.executor, reader.id)
    assert await store.waiting_samples(reader.executor, [reader.id]) == {}
    assert await store.unmatched_messages(reader.executor, reader.id) == 0


async def test_an_open_transaction_of_a_publisher_is_named_once_nothing_else_waits(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    async with begun(connect) as (publisher, _):
        await publish(publisher, "a")
        await publish(database, "b")
        await reader.drain()
        why = await Admin(database).why("orders", "ship")
        assert why.cause == "open_transaction"
        live = LiveDatabase()
        [row] = (await live.snapshot(database)).consumers
        figures = live.reading.consumers[reader.id]
        assert (row.cause, figures.holes_since) == (
            "",
            live.reading.at,
        )  # transactions are open for a moment all the time
        figures.holes_since = datetime(2020, 1, 1, tzinfo=UTC)
        live.changed()
        await live.snapshot(database)
        live.changed()
        [row] = (await live.snapshot(database)).consumers
        assert (row.cause, row.why) == ("open_transaction", why.text)


@pytest.mark.parametrize(
    ("settings", "unmatched"),
    [({}, 0), ({"filters": ["a"]}, 0), ({"filters": ["x"]}, 3), ({"where": conditions.parse("data.totl > 1")}, 3)],
)
async def test_filters_match_nothing_if_none_of_the_last_messages_matches(
    declare: Declare, settings: dict[str, object], unmatched: int
) -> None:
    reader = await declare(**settings)
    assert await store.unmatched_messages(reader.executor, reader.id) == 0
    await publish(reader.executor, *"abc")
    assert await store.unmatched_messages(reader.executor, reader.id) == unmatched
