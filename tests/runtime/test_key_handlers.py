"""Handlers of a key's run, and unordered consumers with a limit on the messages of a key that are
handled at the same time."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from headrace import App, Batch, ConfigurationError, Message, Retry, store
from headrace.model.specs import ConsumerSpec
from tests.runtime.running import Gate, Seen, consumer, numbered, running


@pytest.mark.asyncio
async def test_a_key_handler_gets_each_key_s_run_in_order(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", group_by_key=True, concurrency=4)
    async def ship(batch: Batch, numbers: list[int]) -> None:
        seen.note((batch[0].key, numbers))

    async with app:
        await app.publish_many("orders", numbered("abacab"))
        async with running(app):
            await app.idle()
    assert sorted(seen.notes) == [("a", [1, 3, 5]), ("b", [2, 6]), ("c", [4])]


@pytest.mark.asyncio
async def test_a_run_is_no_longer_than_batch(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", group_by_key=True, batch=2)
    async def ship(numbers: list[int]) -> None:
        seen.note(numbers)

    async with app:
        await app.publish_many("orders", numbered("aaaaa"))
        async with running(app):
            await app.idle()
    assert seen.notes == [[1, 2], [3, 4], [5]]


@pytest.mark.asyncio
async def test_keys_wait_for_their_own_messages_side_by_side_when_a_time_is_given(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", group_by_key=True, batch=2, batch_timeout="60s", concurrency=2)
    async def ship(numbers: list[int]) -> None:
        seen.note(numbers)

    async with running(app):
        for pair in ("ab", "ab"):
            assert seen.notes == []
            await app.publish_many("orders", [(key, ord(key)) for key in pair])
        assert sorted(await seen.until(2)) == [[97, 97], [98, 98]]


@pytest.mark.asyncio
async def test_without_order_a_key_has_at_most_key_concurrency_handlers(app: App) -> None:
    gate = Gate()
    at_work: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @app.consumer("orders", ordered=False, key_concurrency=2, concurrency=16)
    async def ship(message: Message) -> None:
        at_work[message.key] += 1
        most[message.key] = max(most[message.key], at_work[message.key])
        await gate.wait()
        at_work[message.key] -= 1

    async with running(app):
        await app.publish_many("orders", numbered("aaaaabbbc"))
        await gate.until(5)  # two of a, two of b, one of c
        assert most == {"a": 2, "b": 2, "c": 1}
        gate.open()
        await app.idle()
        info = await consumer(app, "ship")
    assert most == {"a": 2, "b": 2, "c": 1}
    assert (info.lag, info.in_flight) == (0, 0)


@pytest.mark.asyncio
async def test_the_concurrency_of_a_key_is_used_when_messages_arrive_while_one_is_handled(app: App) -> None:
    gate = Gate()

    @app.consumer("orders", ordered=False, key_concurrency=3, concurrency=8)
    async def ship() -> None:
        await gate.wait()

    async with running(app):
        await app.publish("orders", "a", 1)
        await gate.until(1)
        await app.publish_many("orders", numbered("aaa"))
        await gate.until(3)
        gate.open()
        await app.idle()
    assert gate.most == 3


@pytest.mark.asyncio
async def test_a_failure_releases_no_other_message(app: App) -> None:
    attempts: list[tuple[int, int]] = []

    @app.consumer("orders", ordered=False, key_concurrency=1, concurrency=4, backoff=0)
    async def ship(number: int, message: Message) -> None:
        attempts.append((number, message.attempt))
        await anyio.lowlevel.checkpoint()
        if (number, message.attempt) == (1, 1):
            raise Retry(after=0)

    async with app:
        await app.publish_many("orders", numbered("aaaa"))
        async with running(app):
            await app.idle()
    assert attempts[:4] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert attempts[4:] == [(1, 2)]


@pytest.mark.asyncio
async def test_key_concurrency_ends_in_a_running_process_once_the_consumer_is_ordered(app: App, seen: Seen) -> None:
    gate = Gate()

    @app.consumer("orders", ordered=False, key_concurrency=4, concurrency=8, backoff=0)
    async def ship(number: int, message: Message) -> None:
        seen.note(number)
        if number in (1, 2) and message.attempt == 1:
            await gate.wait()
        if number == 2 and message.attempt == 1:
            raise Retry(after=0)

    async with running(app):
        await app.publish("orders", "a", 1)
        await gate.until(1)
        await store.declare_consumer(app.database, ConsumerSpec(stream="orders", name="ship"))
        await app.publish_many("orders", [("b", 2), ("b", 3), ("c", 4)])
        assert await seen.until(3) == [1, 2, 4]
        gate.open()
        await app.idle()
    assert seen.notes == [1, 2, 4, 2, 3]


def test_key_concurrency_is_for_single_messages_without_order() -> None:
    async def ship() -> None:
        """A handler."""

    with pytest.raises(ConfigurationError, match="needs ordered=False"):
        App().consumer("orders", key_concurrency=2)(ship)
    with pytest.raises(ConfigurationError, match="key_concurrency and batch don't go together"):
        App().consumer("orders", key_concurrency=2, ordered=False, batch=10)(ship)
    with pytest.raises(ConfigurationError, match="from 1 to 1,000"):
        App().consumer("orders", key_concurrency=0, ordered=False)(ship)
    with pytest.raises(ConfigurationError, match="group_by_key needs the order of keys"):
        App().consumer("orders", group_by_key=True, ordered=False)(ship)
