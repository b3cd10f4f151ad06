"""Receiving through the engine. Waiting requests are served together, and do not affect each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headrace import store
from headrace.model.errors import InvalidInput, StoreUnavailable, UnknownConsumer
from headrace.server.data_plane.receive_request import Share
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.engine import Engine
from headrace.server.errors import TooManyWaiting
from tests.server.conftest import Consume

pytestmark = pytest.mark.asyncio

LONG = 60.0
"""Longest wait in seconds for what comes at once. No test waits this long."""


async def publish(engine: Engine, *keys: str) -> None:
    await engine.app.publish_many("orders", [(key, place) for place, key in enumerate(keys, 1)])


async def in_flight(engine: Engine) -> tuple[int, int]:
    info = await engine.app.admin.consumer("orders", "ship")
    return info.num_ack_pending, info.parked


async def until_waiting(engine: Engine, consumer: CachedConsumer, count: int) -> None:
    """Wait until `count` requests wait, and the lease call for them has found nothing."""
    async with asyncio.timeout(10):
        while (receivers := engine._receivers.get(consumer.number)) is None or len(receivers._queue) < count:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)


class Lease:
    """Counts lease calls, holds them up, and releases them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shares: list[Sequence[int]] = []
        self.called = asyncio.Event()
        self.go = asyncio.Event()
        self._real = store.lease
        monkeypatch.setattr(store, "lease", self._lease)

    async def _lease(self, *args: Any, shares: Sequence[int], **options: Any) -> Any:
        self.shares.append(shares)
        self.called.set()
        await self.go.wait()
        return await self._real(*args, shares=shares, **options)


async def test_a_share_has_all_that_it_takes_to_work_on_it(engine: Engine, consume: Consume) -> None:
    ship = await consume()
    await engine.app.publish("orders", "a", {"x": 1}, headers={"h": 2})
    share = await engine.receive(ship, 10)
    assert (share.seqs, share.keys, share.data, share.headers) == ([1], ["a"], ['{"x":1}'], ['{"h":2}'])
    assert (share.attempts, len(share.ack_ids)) == ([1], 1)
    assert await engine.settle(ship, share.ack_ids) == []
    assert await in_flight(engine) == (0, 0)


async def test_requests_that_wait_are_served_by_one_lease_call_each_with_its_own_share(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = await consume()
    await publish(engine, *"abcdef")
    lease = Lease(monkeypatch)
    first = asyncio.create_task(engine.receive(ship, 1, LONG))
    await lease.called.wait()
    others = [asyncio.create_task(engine.receive(ship, 2, LONG)) for _ in range(2)]
    await until_waiting(engine, ship, 3)
    lease.go.set()
    shares = [await first, *[await one for one in others]]
    assert lease.shares == [[1], [2, 2]]
    assert [list(one.seqs) for one in shares] == [[1], [2, 3], [4, 5]]
    assert len({one.lease for one in shares}) == 3


async def test_no_second_message_of_a_key_is_delivered_while_one_is_in_flight(engine: Engine, consume: Consume) -> None:
    ship = await consume()
    await publish(engine, *"aabab")
    shares = await asyncio.gather(engine.receive(ship, 10), engine.receive(ship, 10), engine.receive(ship, 10))
    assert sorted(seq for one in shares for seq in one.seqs) == [1, 3]
    for one in shares:
        if one.lease is not None:
            await engine.settle(ship, one.ack_ids)
    share = await engine.receive(ship, 10)
    assert list(share.seqs) == [2, 5]


async def test_a_waiting_request_is_woken_by_a_publisher_elsewhere(engine: Engine, consume: Consume, dsn: str) -> None:
    ship = await consume()
    waiting = [asyncio.create_task(engine.receive(ship, 1, LONG)) for _ in range(3)]
    await until_waiting(engine, ship, 3)
    other = store.Database(dsn)
    await other.open()
    try:
        async with asyncio.timeout(10):
            for place, key in enumerate("abc", 1):
                await store.publish(other, "orders", key, "1")
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                assert [list(one.result().seqs) for one in done] == [[place]]
                waiting = [one for one in waiting if one not in done]
    finally:
        await other.close()


async def test_a_waiting_request_is_woken_by_a_message_that_becomes_available(engine: Engine, consume: Consume) -> None:
    ship = await consume()
    await publish(engine, "a", "a")
    first = await engine.receive(ship, 10)
    waiting = asyncio.create_task(engine.receive(ship, 10, LONG))
    await until_waiting(engine, ship, 1)
    await engine.settle(ship, first.ack_ids)
    async with asyncio.timeout(10):
        assert list((await waiting).seqs) == [2]


async def test_a_request_that_has_waited_long_enough_gets_nothing(engine: Engine, consume: Consume) -> None:
    ship = await consume()
    assert await engine.receive(ship, 1, 0.02) == Share(None)
    assert await engine.receive(ship, 1) == Share(None)


async def test_as_many_may_wait_as_max_waiting_says_and_the_next_is_refused_at_once(
    engine: Engine, consume: Consume
) -> None:
    ship = await consume(max_waiting=2)
    waiting = [asyncio.create_task(engine.receive(ship, 1, LONG)) for _ in range(2)]
    await until_waiting(engine, ship, 2)
    for wait in (0.0, LONG):
        with pytest.raises(TooManyWaiting, match="2 requests already wait"):
            await engine.receive(ship, 1, wait)
    await publish(engine, "a")
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(pending)) == (1, 1)
    await publish(engine, "b")
    await asyncio.wait(pending)
    assert list((await engine.receive(ship, 1)).seqs) == []


async def test_max_waiting_counts_as_soon_as_it_is_edited(engine: Engine, consume: Consume) -> None:
    ship = await consume(max_waiting=1)
    await engine.app.admin.edit_consumer("orders", "ship", max_waiting=2)
    await engine.receive(ship, 1)  # its lease call reports the changed settings
    waiting = [asyncio.create_task(engine.receive(ship, 1, LONG)) for _ in range(2)]
    await until_waiting(engine, ship, 2)
    await publish(engine, "a", "b")
    assert sorted(seq for one in await asyncio.gather(*waiting) for seq in one.seqs) == [1, 2]


# --- clients that disconnect


async def test_a_client_that_goes_away_while_it_waits_costs_nothing(engine: Engine, consume: Consume) -> None:
    ship = await consume(max_waiting=1)
    for _ in range(3):
        waiting = asyncio.create_task(engine.receive(ship, 1, LONG))
        await until_waiting(engine, ship, 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert engine.statistics()["waiting"] == 0
    await publish(engine, "a")
    share = await engine.receive(ship, 1)
    assert (list(share.seqs), list(share.attempts)) == ([1], [1])


async def test_messages_leased_for_a_client_that_went_away_are_released(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = await consume(max_deliver=1)
    await publish(engine, *"abc")
    lease = Lease(monkeypatch)
    leaving = asyncio.create_task(engine.receive(ship, 2, LONG))
    await lease.called.wait()
    leaving.cancel()
    await asyncio.wait([leaving])
    staying = asyncio.create_task(engine.receive(ship, 3, LONG))
    lease.go.set()
    seqs: list[int] = []
    share = await staying
    while share.lease is not None:
        assert set(share.attempts) == {1}
        seqs += share.seqs
        share = await engine.receive(ship, 3)
    assert sorted(seqs) == [1, 2, 3]
    assert engine.counts.given_back == 2


async def test_a_request_does_not_stay_if_its_client_left_during_a_lease_call_that_found_nothing(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = await consume()
    lease = Lease(monkeypatch)
    receiving = asyncio.create_task(engine.receive(ship, 1, LONG))
    await lease.called.wait()
    receiving.cancel()
    await asyncio.wait([receiving])
    lease.go.set()
    async with asyncio.timeout(10):  # and not only after the poll interval
        await engine._tasks.finish()
    assert lease.shares == [[1]]


async def test_messages_assigned_to_a_client_at_the_moment_it_goes_away_are_released(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = await consume(max_deliver=1)
    await publish(engine, "a")
    leaving: list[asyncio.Task[Share]] = []
    receivers = await engine._receivers_of(ship)
    deal = receivers._deal

    async def deal_and_leave(*args: Any) -> None:
        await deal(*args)
        leaving[0].cancel()

    monkeypatch.setattr(receivers, "_deal", deal_and_leave)
    leaving.append(asyncio.create_task(engine.receive(ship, 1, LONG)))
    await asyncio.wait(leaving)
    assert leaving[0].cancelled()
    monkeypatch.undo()
    async with asyncio.timeout(10):
        share = await engine.receive(ship, 1, LONG)
    assert (list(share.seqs), list(share.attempts)) == ([1], [1])


# --- impossible requests


async def test_invalid_receive_requests_are_refused(engine: Engine, consume: Consume) -> None:
    ship = await consume()
    for batch_size, wait in ((0, 0.0), (1001, 0.0), (1, -1.0), (1, 3601.0)):
        with pytest.raises(InvalidInput, match="is out of range"):
            await engine.receive(ship, batch_size, wait)


async def test_a_request_that_waits_for_a_deleted_consumer_fails(engine: Engine, consume: Consume) -> None:
    ship = await consume()
    waiting = asyncio.create_task(engine.receive(ship, 1, LONG))
    await until_waiting(engine, ship, 1)
    await engine.app.admin.delete_consumer("orders", "ship", force=True)
    with pytest.raises(UnknownConsumer):
        async with asyncio.timeout(10):
            await waiting
    with pytest.raises(UnknownConsumer):
        await engine.consumer("orders", "ship")


async def test_a_consumer_made_anew_under_its_name_is_found(engine: Engine, consume: Consume) -> None:
    old = await consume()
    await publish(engine, "a")
    share = await engine.receive(old, 1)
    await engine.app.admin.delete_consumer("orders", "ship", force=True)
    with pytest.raises(UnknownConsumer):
        await engine.receive(old, 1)
    new = await consume()
    assert await engine.settle(new, share.ack_ids) == list(share.ack_ids)
    assert list((await engine.receive(new, 1)).seqs) == [1]


async def test_a_request_that_waits_when_the_server_stops_is_answered_at_once(engine: Engine, consume: Consume) -> None:
    ship = await consume()
    waiting = asyncio.create_task(engine.receive(ship, 1, LONG))
    await until_waiting(engine, ship, 1)
    engine.app.stop()
    async with asyncio.timeout(10):
        assert await waiting == Share(None)


async def test_when_the_store_is_away_waiting_requests_fail_and_may_be_repeated(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = await consume()

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("it is away")

    with monkeypatch.context() as patched:
        patched.setattr(store, "lease", away)
        answers = await asyncio.gather(*(engine.receive(ship, 1, LONG) for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in answers] == [StoreUnavailable] * 3
    await publish(engine, "a")
    assert list((await engine.receive(ship, 1)).seqs) == [1]


async def test_concurrent_lookups_of_a_name_share_one_lookup(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    await consume()
    engine.clear_caches()
    looks = 0
    real = store.find_consumers

    async def find(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return await real(*args)

    monkeypatch.setattr(store, "find_consumers", find)
    first = asyncio.create_task(engine.consumer("orders", "ship"))
    others = [asyncio.create_task(engine.consumer("orders", "ship")) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()  # a cancelled request takes no messages with it
    assert {one.name for one in await asyncio.gather(*others)} == {"ship"}
    assert looks == 1
