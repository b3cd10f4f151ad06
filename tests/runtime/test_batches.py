"""Batch handlers: how batches fill, and the outcome of each message."""

from __future__ import annotations

import gc
from typing import Any

import asyncpg
import pytest

from headrace import App, Batch, Reject, Retry
from headrace.runtime.execution.batch_executor import BatchAcknowledger
from tests.runtime.batching import Order, orders
from tests.runtime.running import (
    Gate,
    Seen,
    consumer,
    dead_letters,
    eventually,
    make_due,
    numbered,
    parked,
    running,
)

# --- how they fill


@pytest.mark.asyncio
async def test_a_batch_takes_waiting_messages_of_all_keys_up_to_its_size(app: App) -> None:
    sizes: list[int] = []
    found: list[int] = []

    @app.consumer("orders", batch=8, concurrency=1)
    async def ship(batch: list[Order]) -> None:
        sizes.append(len(batch))
        found.extend(order.number for order in batch)

    async with app:
        await app.publish_many("orders", orders("abcd" * 5))
        async with running(app):
            await app.idle()
            info = await consumer(app, "ship")
    assert max(sizes) == 8
    assert sorted(found) == list(range(1, 21))
    assert (info.parked, info.in_flight) == (0, 0)


@pytest.mark.asyncio
async def test_a_batch_is_full_once_its_payloads_have_batch_bytes(app: App) -> None:
    """A payload of 3,000 bytes with its quotes. The third reaches the limit. A payload above the limit is a batch of its own."""
    sizes: list[list[int]] = []

    @app.consumer("orders", batch=100, batch_bytes="7kB", concurrency=1)
    async def ship(batch: list[str]) -> None:
        sizes.append([len(text.encode()) for text in batch])

    async with app:
        await app.publish_many("orders", [(f"k{n}", "ü" * 1499) for n in range(9)])
        await app.publish("orders", "large", "x" * 50_000)
        async with running(app):
            await app.idle()
    assert sizes == [[2998] * 3] * 3 + [[50_000]]


@pytest.mark.asyncio
async def test_a_batch_that_is_not_full_waits_for_more_and_runs_as_soon_as_it_is(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", batch=3, batch_timeout="60s", concurrency=4)
    async def ship(batch: list[int]) -> None:
        seen.note(sorted(batch))

    async with running(app):
        for key, number in numbered("aba"):
            assert seen.notes == []
            await app.publish("orders", key, number)
        assert await seen.until(1) == [[1, 2, 3]]


@pytest.mark.asyncio
async def test_a_batch_that_does_not_fill_runs_when_its_time_is_up(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", batch=100, batch_timeout=0.1)
    async def ship(batch: list[int]) -> None:
        seen.note(batch)

    async with running(app):
        await app.publish("orders", "a", 1)
        assert await seen.until(1) == [[1]]


@pytest.mark.asyncio
async def test_draining_ends_the_wait_and_runs_an_incomplete_batch(app: App) -> None:
    found: list[list[int]] = []

    @app.consumer("orders", batch=100, batch_timeout="60s", concurrency=2)
    async def ship(batch: list[int]) -> None:
        found.append(batch)

    async with running(app, within=30):
        await app.publish_many("orders", numbered("ab"))
        await eventually(lambda: filling(app))
    assert [sorted(batch) for batch in found] == [[1, 2]]
    async with app:
        info = await consumer(app, "ship")
    assert (info.lag, info.in_flight) == (0, 0)


async def filling(app: App) -> bool:
    return bool(app.statistics()["consumers"]["orders:ship"]["busy"])


@pytest.mark.asyncio
async def test_one_batch_fills_at_a_time_and_the_next_begins_with_the_rest(app: App) -> None:
    gate, seen = Gate(), Seen()

    @app.consumer("orders", batch=4, batch_timeout="60s", concurrency=3)
    async def ship(batch: list[int]) -> None:
        seen.note(len(batch))
        await gate.wait()

    async with running(app):
        await app.publish_many("orders", numbered("abcdefghijkl"))
        await gate.until(3)
        gate.open()
    assert seen.notes == [4, 4, 4]


@pytest.mark.asyncio
async def test_messages_of_a_key_that_is_in_a_batch_wait_for_its_end(app: App) -> None:
    gate, seen = Gate(), Seen()

    @app.consumer("orders", batch=2, concurrency=4)
    async def ship(batch: Batch) -> None:
        seen.note([message.data for message in batch])
        if 1 in batch.payloads:
            await gate.wait()

    async with running(app):
        await app.publish_many("orders", numbered("aa"))
        await gate.until(1)
        await app.publish_many("orders", [("a", 3), ("b", 4)])
        assert await seen.until(2) == [[1, 2], [4]]
        gate.open()
        assert await seen.until(3) == [[1, 2], [4], [3]]


@pytest.mark.asyncio
async def test_a_handler_takes_the_payloads_the_batch_or_both(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", batch=10, name="both")
    async def both(batch: Batch, found: list[Order]) -> None:
        seen.note((batch.stream, batch.consumer, [m.key for m in batch], [order.number for order in found], len(batch)))
        assert batch.payloads == found
        assert batch[0].data is found[0]

    async with app:
        await app.publish_many("orders", orders("ab"))
        async with running(app):
            await app.idle()
    assert seen.notes == [("orders", "both", ["a", "b"], [1, 2], 2)]


# --- outcomes


@pytest.mark.asyncio
async def test_a_list_that_the_handler_returns_has_the_outcome_of_each_message(app: App) -> None:
    @app.consumer("orders", batch=4, concurrency=1, backoff="1h")
    async def ship(batch: list[int]) -> list[Any]:
        return [None, Retry("later", after="1h"), Reject("never"), None]

    async with app:
        await app.publish_many("orders", numbered("abcd"))
        async with running(app):
            await eventually(lambda: settled(app, "ship"))
            (row,) = await parked(app)
            (letter,) = await dead_letters(app, "ship")
            info = await consumer(app, "ship")
    assert (row["seq"], row["attempts"]) == (2, 1)
    assert (letter.seq, letter.reason, letter.error) == (3, "rejected", "never")
    assert (info.parked, info.in_flight) == (1, 0)


async def settled(app: App, name: str) -> bool:
    info = await consumer(app, name)
    return info.in_flight == 0 and info.lag <= info.parked


@pytest.mark.asyncio
async def test_a_batch_can_set_the_outcome_of_one_message(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", batch=4, concurrency=1)
    async def ship(batch: Batch) -> None:
        seen.note([(message.seq, message.attempt) for message in batch])
        for message in batch:
            if message.data == 2 and message.attempt == 1:
                batch.retry(message, after=0)
            if message.data == 3:
                batch.reject(message, "no such order")

    async with app:
        await app.publish_many("orders", numbered("abcd"))
        async with running(app):
            await app.idle()
            (letter,) = await dead_letters(app, "ship")
    assert seen.notes == [[(1, 1), (2, 1), (3, 1), (4, 1)], [(2, 2)]]
    assert (letter.seq, letter.error) == (3, "no such order")


@pytest.mark.asyncio
async def test_messages_after_a_failed_one_of_their_key_come_again_whatever_their_outcome(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", batch=10, concurrency=1)
    async def ship(batch: Batch) -> list[Any] | None:
        seen.note([(message.seq, message.attempt) for message in batch])
        if len(seen.notes) > 1:
            return None
        return [None, Retry(after=0), None, Reject("said too early"), None]

    async with app:
        await app.publish_many("orders", numbered("aabaa"))
        async with running(app):
            await app.idle()
            assert await dead_letters(app, "ship") == []
    first, *others = seen.notes
    assert first == [(1, 1), (2, 1), (4, 1), (5, 1), (3, 1)]
    again = [pair for batch in others for pair in batch]
    assert again == [(2, 2), (4, 1), (5, 1)]


@pytest.mark.asyncio
async def test_without_order_a_failed_message_holds_up_no_other(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", batch=10, concurrency=1, ordered=False)
    async def ship(batch: Batch) -> list[Any]:
        seen.note([message.seq for message in batch])
        return [Retry(after=0) if message.attempt == 1 and message.seq == 1 else None for message in batch]

    async with app:
        await app.publish_many("orders", numbered("aaa"))
        async with running(app):
            await app.idle()
    assert seen.notes == [[1, 2, 3], [1]]


@pytest.mark.asyncio
async def test_a_message_that_settles_itself_in_a_batch_has_its_outcome_at_once(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", batch=10, concurrency=1)
    async def ship(batch: Batch) -> None:
        seen.note([(message.seq, message.attempt) for message in batch])
        if len(seen.notes) > 1:
            return
        one = {message.seq: message for message in batch}
        await one[1].ack()
        await one[2].nack(0)
        await one[4].reject("no such order")
        await one[5].reject("too late: it went back behind message 2")
        raise RuntimeError("counts only for what has no outcome yet")

    async with app:
        await app.publish_many("orders", numbered("abcdb"))
        async with running(app):
            await eventually(lambda: waits_only(app, 3))
            await make_due(app)
            await app.idle()
            (letter,) = await dead_letters(app, "ship")
    first, *others = seen.notes
    assert first == [(1, 1), (2, 1), (5, 1), (3, 1), (4, 1)]
    assert sorted(pair for batch in others for pair in batch) == [(2, 2), (3, 2), (5, 1)]
    assert letter.seq == 4


async def waits_only(app: App, seq: int) -> bool:
    return [row["seq"] for row in await parked(app)] == [seq] and await settled(app, "ship")


@pytest.mark.asyncio
async def test_an_ack_in_the_handler_s_own_transaction_is_looked_up_before_the_rest_is_settled(
    app: App, dsn: str
) -> None:
    seen = Seen()

    @app.consumer("orders", batch=10, concurrency=1, backoff=0)
    async def ship(batch: Batch) -> None:
        seen.note([(message.seq, message.attempt) for message in batch])
        if len(seen.notes) > 1:
            return
        one = {message.seq: message for message in batch}
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                await one[1].ack(tx=connection)
            undone = connection.transaction()
            await undone.start()
            await one[2].ack(tx=connection)
            await undone.rollback()
        finally:
            await connection.close()

    async with app:
        await app.publish_many("orders", numbered("abbc"))
        async with running(app):
            await app.idle()
    first, *others = seen.notes
    assert first == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert [pair for batch in others for pair in batch] == [(2, 2), (3, 1)], "3 waits behind 2, which has failed"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ([None], "a batch of 2 messages returned a list of 1"),
        ([None, 7], "returned a list with a int"),
        ([], "a batch of 2 messages returned a list of 0"),
    ],
)
async def test_a_list_that_does_not_fit_fails_the_batch_and_says_why(
    app: App, returned: list[Any], complaint: str
) -> None:
    @app.consumer("orders", batch=2, batch_timeout="60s", max_deliver=1)
    async def ship() -> list[Any]:
        return returned

    async with running(app):
        await app.publish_many("orders", numbered("ab"))
        await app.idle()
        letters = await dead_letters(app, "ship")
    assert len(letters) == 2
    assert all(complaint in (letter.error or "") for letter in letters)


@pytest.mark.asyncio
async def test_a_payload_that_does_not_fit_is_rejected_and_spoils_no_other_key(app: App) -> None:
    found: list[int] = []

    @app.consumer("orders", batch=10, concurrency=1)
    async def ship(batch: list[Order]) -> None:
        found.extend(order.number for order in batch)

    async with app:
        await app.publish_many(
            "orders", [("a", {"number": 1}), ("a", "nonsense"), ("b", {"number": 3}), ("a", {"number": 4})]
        )
        async with running(app):
            await app.idle()
            (letter,) = await dead_letters(app, "ship")
    assert (letter.seq, letter.reason) == (2, "invalid")
    assert found == [1, 3, 4]


@pytest.mark.asyncio
async def test_nothing_of_a_batch_stays_in_memory_once_it_is_done(app: App) -> None:
    """Messages are not tracked by the garbage collector, so a reference cycle through one is never collected."""

    @app.consumer("orders", batch=8)
    async def ship(batch: Batch) -> None:
        if batch[0].attempt == 1:
            batch.retry(batch[0], after=0)

    async with running(app):
        await app.publish_many("orders", numbered("abcd"))
        await app.idle()
        gc.collect()
        assert [one for one in gc.get_objects() if isinstance(one, BatchAcknowledger)] == []
