"""Batches that fail: handlers that raise, the order of keys after that, and invalid settings."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any, cast

import anyio
import pytest

from headrace import App, Batch, ConfigurationError, LeaseLost, Message, Reject, Retry
from headrace.flow.in_flight import Lease
from headrace.runtime.messages.message import Acknowledger
from tests.runtime.batching import Order, orders
from tests.runtime.running import (
    Gate,
    Seen,
    consumer,
    dead_letters,
    eventually,
    numbered,
    parked,
    running,
    seek,
)
from tests.support.logs import logged

# --- failing batches


@pytest.mark.asyncio
async def test_a_batch_that_raises_comes_again_as_a_whole_and_counts_for_each(app: App) -> None:
    @app.consumer("orders", batch=10, concurrency=1, backoff="1h")
    async def ship(batch: list[int]) -> None:
        raise ValueError("none of them")

    async with app:
        await app.publish_many("orders", numbered("aab"))
        async with running(app):
            rows = await eventually(lambda: parked(app))
    assert [(row["seq"], row["attempts"]) for row in rows] == [(1, 1), (2, 1), (3, 1)]
    assert all(row["due_in"] > 600 for row in rows)


@pytest.mark.asyncio
async def test_bisecting_finds_the_failing_message_and_acks_the_others(app: App) -> None:
    calls: list[list[int]] = []

    @app.consumer("orders", batch=8, concurrency=1, on_batch_error="bisect")
    async def ship(batch: list[int]) -> None:
        calls.append(batch)
        if 6 in batch:
            raise Reject("six is not for us")

    async with app:
        await app.publish_many("orders", numbered("abcdefgh"))
        async with running(app):
            await app.idle()
            (letter,) = await dead_letters(app, "ship")
    assert calls == [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4], [5, 6, 7, 8], [5, 6], [5], [6], [7, 8]]
    assert (letter.seq, letter.error) == (6, "six is not for us")


@pytest.mark.asyncio
async def test_messages_after_the_failing_one_of_their_key_are_released_uncounted(app: App) -> None:
    calls: list[list[tuple[int, int]]] = []

    @app.consumer("orders", batch=8, concurrency=1, on_batch_error="bisect")
    async def ship(batch: Batch) -> None:
        calls.append([(message.data, message.attempt) for message in batch])
        if any(message.data == 2 and message.attempt == 1 for message in batch):
            raise Retry(after=0)

    async with app:
        await app.publish_many("orders", numbered("aabaa"))
        async with running(app):
            await app.idle()
    assert calls[:4] == [[(1, 1), (2, 1), (4, 1), (5, 1), (3, 1)], [(1, 1), (2, 1)], [(1, 1)], [(2, 1)]]
    assert calls[4] == [(3, 1)]
    assert [pair for call in calls[5:] for pair in call] == [(2, 2), (4, 1), (5, 1)]


@pytest.mark.asyncio
async def test_halves_are_decoded_again(app: App) -> None:
    calls: list[list[list[int]]] = []

    @app.consumer("orders", batch=2, batch_timeout="60s", concurrency=1, on_batch_error="bisect")
    async def ship(batch: list[list[int]]) -> None:
        for numbers in batch:
            numbers.append(0)
        calls.append(batch)
        if len(batch) > 1:
            raise ValueError

    async with running(app):
        await app.publish_many("orders", [("a", [1]), ("b", [2])])
        await app.idle()
    assert calls == [[[1, 0], [2, 0]], [[1, 0]], [[2, 0]]]


@pytest.mark.asyncio
async def test_a_batch_that_lost_its_lease_is_not_bisected_and_counts_no_attempt(app: App) -> None:
    calls: list[list[int]] = []

    @app.consumer("orders", batch=2, batch_timeout="60s", concurrency=1, on_batch_error="bisect")
    async def ship(batch: Batch) -> None:
        calls.append([message.attempt for message in batch])
        if len(calls) == 1:
            raise LeaseLost("as a transaction does")

    async with running(app):
        await app.publish_many("orders", numbered("ab"))
        await app.idle()
    assert calls == [[1, 1], [1, 1]]


@pytest.mark.asyncio
@pytest.mark.parametrize("on_batch_error", ["retry", "bisect"])
async def test_a_timeout_stops_one_call_of_the_handler(app: App, on_batch_error: Any) -> None:
    calls: list[list[int]] = []

    @app.consumer(
        "orders",
        batch=3,
        batch_timeout="60s",
        concurrency=1,
        timeout="100ms",
        max_deliver=1,
        on_batch_error=on_batch_error,
    )
    async def ship(batch: list[int]) -> None:
        calls.append(batch)
        if 2 in batch:
            await anyio.sleep_forever()

    async with running(app):
        await app.publish_many("orders", numbered("abc"))
        await app.idle()
        letters = await dead_letters(app, "ship")
    assert all(letter.error == "The handler took longer than its timeout of 0.1 s." for letter in letters)
    if on_batch_error == "retry":
        assert (calls, len(letters)) == ([[1, 2, 3]], 3)
    else:
        assert calls == [[1, 2, 3], [1], [2, 3], [2], [3]]
        assert [letter.seq for letter in letters] == [2]


@pytest.mark.asyncio
async def test_a_batch_that_is_stopped_at_the_end_of_the_drain_is_released(dsn: str) -> None:
    app = App(dsn, shutdown_timeout=0.1)
    seen = Seen()

    @app.consumer("orders", batch=3, batch_timeout="60s")
    async def ship(batch: list[int]) -> None:
        seen.note(batch)
        await anyio.sleep_forever()

    async with app:
        async with running(app):
            await app.publish_many("orders", numbered("abc"))
            await seen.until(1)
        rows = await parked(app)
        info = await consumer(app, "ship")
    assert [(row["seq"], row["attempts"]) for row in rows] == [(1, 0), (2, 0), (3, 0)]
    assert info.in_flight == 0


@pytest.mark.asyncio
async def test_no_batch_of_an_ended_lease_is_started(app: App) -> None:
    gate, seen = Gate(), Seen()

    @app.consumer("orders", batch=1, concurrency=1)
    async def ship(batch: Batch) -> None:
        seen.note((batch[0].data, batch[0].attempt))
        if len(seen.notes) == 1:
            await gate.wait()
            with pytest.raises(LeaseLost):
                await batch[0].extend()

    async with running(app):
        await app.publish_many("orders", numbered("ab"))
        await gate.until(1)
        await seek(app, "ship")  # takes the leases away
        gate.open()
        await app.idle()
    assert sorted(seen.notes) == [(1, 1), (1, 1), (2, 1)]


def test_the_acks_of_a_batch_leave_out_failed_messages_and_those_after_them() -> None:
    batch = batch_of("aabab")
    assert [message.seq for message in batch.done] == [1, 2, 3, 4, 5]
    batch.retry(batch[1])
    batch[2].settled = True
    assert [message.seq for message in batch.done] == [1, 5]


def batch_of(keys: str) -> Batch:
    lease, acknowledger = Lease(1, range(1, len(keys) + 1), keys, float("inf")), cast(Acknowledger, None)
    return Batch(
        "orders",
        "ship",
        tuple(
            Message("orders", "ship", key, seq, 1, 0, str(seq), None, lease, key, acknowledger)
            for seq, key in enumerate(keys, 1)
        ),
    )


# --- order


@pytest.mark.asyncio
@pytest.mark.parametrize("group_by_key", [False, True], ids=["batches", "key handlers"])
@pytest.mark.parametrize("on_batch_error", ["retry", "bisect"])
async def test_order_per_key_holds_through_failures_and_retries(
    dsn: str, group_by_key: bool, on_batch_error: Any
) -> None:
    dice = random.Random(1)
    keys = [f"k{dice.randrange(6)}" for _ in range(300)]
    left: dict[str, list[int]] = defaultdict(list)
    for number, key in enumerate(keys, 1):
        left[key].append(number)
    busy: set[str] = set()
    errors: list[str] = []
    apps = [App(dsn, streams=["orders"]) for _ in range(2)]
    for app in apps:

        @app.consumer(
            "orders", name="ship", batch=7, batch_timeout=0.002, group_by_key=group_by_key, concurrency=4, backoff=0,
            max_deliver=-1, on_batch_error=on_batch_error,
        )  # fmt: skip
        async def ship(batch: Batch) -> list[Any]:
            mine = {message.key for message in batch}
            if mine & busy:
                errors.append(f"{mine & busy} are in another batch")
            busy.update(mine)
            await anyio.lowlevel.checkpoint()
            busy.difference_update(mine)
            if dice.random() < 0.2:
                raise ValueError("once more")
            outcomes: list[Any] = []
            failed: set[str] = set()
            for message in batch:
                fails = dice.random() < 0.2
                outcomes.append(Retry(after=0) if fails else None)
                if fails:
                    failed.add(message.key)
                elif message.key not in failed and left[message.key].pop(0) != message.data:
                    errors.append(f"message {message.seq} was out of order")
            return outcomes

    async with apps[0]:
        await apps[0].publish_many("orders", numbered(keys))
        async with running(apps[0]), running(apps[1]):
            await apps[0].idle()
        info = await consumer(apps[0], "ship")
    assert errors == []
    assert not any(left.values())
    assert (info.parked, info.in_flight, info.dead_letters) == (0, 0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("returned", [False, True])
async def test_what_a_batch_fails_with_is_logged_once_for_each_attempt(
    app: App, caplog: pytest.LogCaptureFixture, returned: bool
) -> None:
    @app.consumer("orders", batch=20, concurrency=1, max_deliver=2, backoff=0.0)
    async def ship(batch: list[Order]) -> Retry:
        if returned:
            return Retry("It is closed.")
        raise RuntimeError("It is closed.")

    async with app:
        await app.publish_many("orders", orders("abcdefgh"))
        async with running(app):
            await app.idle()
            assert len(await dead_letters(app, "ship")) == 8
    assert len(logged(caplog, "message failed", consumer="ship", attempt=1)) == 1
    assert len(logged(caplog, "message dead-lettered", consumer="ship", attempt=2)) == 1


# --- invalid settings


def test_settings_of_batches_without_a_batch_are_refused() -> None:
    for settings in ({"batch_bytes": 1}, {"batch_timeout": 1}, {"on_batch_error": "bisect"}):
        with pytest.raises(ConfigurationError, match="goes with batch"):
            App().consumer("orders", name="ship", **settings)(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"batch_bytes='much' is not a size\. Write bytes"):
        App().consumer("orders", batch=2, batch_bytes="much", name="ship")(lambda: None)
    with pytest.raises(ConfigurationError, match="batch_bytes=0 must be at least 1 byte"):
        App().consumer("orders", batch=2, batch_bytes=0, name="ship")(lambda: None)
    with pytest.raises(ConfigurationError, match="from 1 to 500,000 messages"):
        App().consumer("orders", batch=0, name="ship")(lambda: None)
    with pytest.raises(ConfigurationError, match="never fills with max_ack_pending=10"):
        App().consumer("orders", batch=11, max_ack_pending=10, name="ship")(lambda: None)
