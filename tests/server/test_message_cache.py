"""The message cache. Recent messages are read once, and the answers always equal what the stream holds."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import store
from headrace.model.outcomes import Settlement
from headrace.server.data_plane.delivery_bodies import encode_deliveries
from headrace.server.data_plane.message_cache import MAX_RANGES, CachedMessage, MessageCaches, encode
from headrace.server.engine import Engine
from tests.server.conftest import Consume

KEY = (1, (">",), "None")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def message(seq: int) -> CachedMessage:
    return encode(seq, "s", f"k{seq}", "1", None, NOW)


SIZE = len(message(1000).encoded)

puts = st.lists(st.lists(st.integers(1000, 1300), max_size=12, unique=True), max_size=40)


@given(puts, st.integers(0, 60))
def test_the_ranges_are_what_is_kept_and_no_more_than_there_is_room_for(puts: list[list[int]], room: int) -> None:
    caches = MessageCaches(max_size=room * SIZE)
    cache = caches.of(KEY)
    for seqs in puts:
        cache.put(seqs, map(message, seqs))
        named = [seq for first, last in cache.ranges for seq in range(first, last + 1)]
        assert named == sorted(cache._messages)
        assert all(after[0] > before[1] + 1 for before, after in zip(cache.ranges, cache.ranges[1:], strict=False))
        assert caches.size == sum(len(one.encoded) for one in cache._messages.values()) <= room * SIZE
        assert len(cache.ranges) <= MAX_RANGES
        for seq in named:
            assert cache.get(seq) == message(seq)


def test_caches_share_their_room_and_each_makes_some() -> None:
    caches = MessageCaches(max_size=10 * SIZE)
    first, second = caches.of(KEY), caches.of((2, (">",), "None"))
    first.put(range(1000, 1008), map(message, range(1000, 1008)))
    for seq in range(2000, 2100):
        second.put([seq], [message(seq)])
    assert caches.size <= 10 * SIZE
    assert second.get(2099) is not None
    assert first.get(1000) is None


def test_history_that_one_reads_alone_is_not_kept() -> None:
    cache = MessageCaches(max_size=10 * SIZE).of(KEY)
    cache.put([1000, 1001], map(message, [1000, 1001]))
    cache.put([5], [message(5)])
    assert (cache.get(5), cache.ranges) == (None, [(1000, 1001)])


@pytest.mark.asyncio
async def test_a_database_that_went_away_may_come_back_with_other_messages(engine: Engine, consume: Consume) -> None:
    ship, bill = await consume("ship"), await consume("bill")
    await engine.app.publish("orders", "a", "lost")
    assert (await engine.receive(ship, 10)).data == ['"lost"']
    await engine.app.database.fetch("""update headrace_streams.orders set data = '"other"'""")
    engine.set_polling(polling=True)
    assert engine._caches.size == 0
    assert (await engine.receive(bill, 10)).data == ['"other"']


@pytest.mark.asyncio
async def test_a_message_with_a_time_to_live_is_not_cached_since_a_lease_call_decides_whether_it_has_expired(
    engine: Engine, consume: Consume
) -> None:
    ship, bill = await consume("ship"), await consume("bill")
    await engine.app.publish("orders", "a", 1, expires_in=60)
    await engine.app.publish("orders", "b", 2)
    assert (await engine.receive(ship, 1)).data == ["1"]
    assert (await engine.receive(ship, 1)).data == ["2"]
    await engine.app.database.fetch("update headrace_streams.orders set created_at = created_at - interval '61 s'")
    assert (await engine.receive(bill, 2)).data == ["2"]


@pytest.mark.asyncio
async def test_a_server_has_forgotten_what_was_erased_elsewhere_after_a_minute(
    engine: Engine, consume: Consume
) -> None:
    ship = await consume("ship")
    await engine.app.publish("orders", "a", "secret")
    await engine.receive(ship, 1)
    assert engine._caches.size > 0
    engine.remove_unused()  # every minute
    assert engine._caches.size == 0


@pytest.mark.asyncio
async def test_a_lease_leaves_out_the_contents_of_cached_messages(engine: Engine, consume: Consume) -> None:
    database = engine.app.database
    await engine.app.publish_many("orders", [(key, place) for place, key in enumerate("abcadef", 1)])
    first = await consume("first")
    history = (await store.lease(database, first.number, UUID(int=0), 1)).history
    for name, filters in (("walked", (">",)), ("judged", ("a", "b", "c", "d", "e", "f"))):
        consumer = await consume(name, filters=filters)
        batch = await store.lease(
            database, consumer.number, UUID(int=0), 9, shares=[9], known=[(2, 3), (5, 5)], history=history
        )
        assert (batch.seqs, batch.keys) == ([1, 2, 3, 5, 6, 7], ["a", None, None, None, "e", "f"])
        for contents in (batch.data, batch.headers, batch.created_at):
            assert [one is None for one in contents[1:4]] == [True] * 3
        assert batch.lease_ids is not None
        await store.settle(database, consumer.number, Settlement(whole=batch.lease_ids))
        again = await store.lease(
            database, consumer.number, UUID(int=0), 9, shares=[9], known=[(4, 4)], history=history
        )
        assert (again.seqs, again.keys, again.data) == ([4], [None], [None])  # it had been parked


@pytest.mark.asyncio
async def test_consumers_that_read_the_same_messages_get_them_from_one_read(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought: list[int] = []
    lease = store.lease

    async def counted(*args: Any, **options: Any) -> Any:
        batch = await lease(*args, **options)
        brought.extend(seq for seq, key in zip(batch.seqs, batch.keys, strict=True) if key is not None)
        return batch

    monkeypatch.setattr(store, "lease", counted)
    odd: list[Any] = ['{"a": 1.50}', '"héron\\n"', "null", "[1,  2]", "1e400"]
    for place, data in enumerate(odd):
        await store.publish(engine.app.database, "orders", f"k.{place}", data, '{"h": 1}' if place % 2 else None)
    answers = []
    for name in ("ship", "bill", "audit"):
        consumer = await consume(name)
        share = await engine.receive(consumer, 10)
        answers.append(
            [one["message"] for one in msgspec.json.decode(encode_deliveries(share).replace(b"1e400", b"1"))["data"]]
        )
        assert share.data == odd
    assert answers[0] == answers[1] == answers[2]
    assert sorted(brought) == [1, 2, 3, 4, 5]


@pytest.mark.asyncio
async def test_messages_evicted_from_the_cache_during_a_lease_call_are_read_from_the_stream(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship, bill = await consume("ship"), await consume("bill")
    await engine.app.publish_many("orders", [(key, key) for key in "abc"])
    assert list((await engine.receive(ship, 10)).seqs) == [1, 2, 3]
    lease = store.lease

    async def and_forget(*args: Any, **options: Any) -> Any:
        batch = await lease(*args, **options)
        assert batch.keys == [None] * 3
        receivers = await engine._receivers_of(bill)
        receivers._cache.make_room(1_000_000)
        await engine.app.database.fetch("delete from headrace_streams.orders where seq = 2")  # as retention does
        return batch

    monkeypatch.setattr(store, "lease", and_forget)
    share = await engine.receive(bill, 10)
    assert (list(share.seqs), share.data) == ([1, 3], ['"a"', '"c"'])
    monkeypatch.undo()
    assert await engine.settle(bill, share.ack_ids) == []
    assert (await engine.app.admin.consumer("orders", "bill")).num_ack_pending == 0


@pytest.mark.asyncio
async def test_concurrent_consumers_on_a_small_cache_get_what_the_stream_holds(
    engine: Engine, consume: Consume
) -> None:
    engine._caches._max_size = 20 * SIZE
    names = ["ship", "bill", "audit"]
    consumers = [await consume(name) for name in names]
    await engine.app.publish_many("orders", [(f"k{place}", place) for place in range(1, 301)])

    async def work(place: int) -> list[str]:
        got: list[str] = []
        while (share := await engine.receive(consumers[place], 7 + place)).lease is not None:
            assert [f"k{data}" for data in share.data] == share.keys
            got += share.data
            await engine.settle(consumers[place], share.ack_ids)
        return got

    for got in await asyncio.gather(*(work(place) for place in range(3))):
        assert got == [str(place) for place in range(1, 301)]
