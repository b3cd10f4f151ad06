"""Peek: view the messages of a stream or of a consumer without changing anything."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import store
from headrace.model import conditions
from headrace.model.errors import UnknownConsumer, UnknownStream
from headrace.model.specs import StreamSpec
from tests.conftest import Declare
from tests.support.readers import Reader, owner, publish

pytestmark = pytest.mark.asyncio


async def peek(reader: Reader, limit: int = 10) -> dict[str, list[int]]:
    """The seqs in each state."""
    found: dict[str, list[int]] = {}
    for message in await store.peek(reader.executor, reader.id, limit=limit):
        found.setdefault(message.state, []).append(message.seq)
    return found


async def test_every_message_shows_in_its_state(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=2, on_exhausted="block")
    await publish(database, *"abcdabef")
    first = await reader.lease("ann", 3)
    await reader.nack(first, 1, delay=60)
    await reader.ack(first, 3)
    blocking = await reader.lease("bob", 1)
    await reader.nack(blocking, 4)
    await reader.nack(await reader.lease("bob", 1), 4)
    held = await reader.lease("cid", 1)
    assert held.seqs == [7]
    assert await peek(reader) == {"in_flight": [2, 7], "parked": [1, 5, 6], "blocked": [4], "next": [8]}


async def test_a_message_in_flight_shows_its_owner_expiry_and_attempt(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ack_wait=30)
    await store.publish(database, "orders", "a", '{"x": 1}', '{"h": 2}')
    await reader.nack(await reader.lease())
    await reader.lease("bob")
    (found,) = await store.peek(database, reader.id)
    assert (found.seq, found.key, found.data, found.headers) == (1, "a", {"x": 1}, {"h": 2})
    assert (found.state, found.attempts, found.owner) == ("in_flight", 2, str(owner("bob")))
    assert found.until == reader.clock.now + timedelta(seconds=30)


async def test_a_parked_message_shows_when_it_is_due(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ab")
    batch = await reader.lease()
    await reader.nack(batch, 1, delay=60)
    await reader.release(batch, 2)
    later, now = await store.peek(database, reader.id)
    assert (later.state, later.attempts, later.until) == ("parked", 1, reader.clock.now + timedelta(seconds=60))
    assert (now.state, now.attempts, now.until, now.owner) == ("parked", 0, None, None)


async def test_peeking_changes_nothing(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"aab")
    await reader.release(await reader.lease(limit=1))
    before = await reader.cursor()
    assert await peek(reader) == await peek(reader) == {"parked": [1], "next": [2, 3]}
    assert await reader.cursor() == before
    assert await reader.drain() == [1, 2, 3]


async def test_the_limit_is_for_each_state(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcdefgh")
    await reader.release(await reader.lease(limit=4))
    await reader.lease(limit=3)
    assert await peek(reader, 2) == {"in_flight": [1, 2], "parked": [4], "next": [5, 6]}


async def test_next_shows_the_messages_that_the_consumer_wants(database: store.Database, declare: Declare) -> None:
    reader = await declare(filters=("a", "b"), where=conditions.parse("data.n != 2"))
    await publish(database, *"abacab")
    assert await peek(reader) == {"next": [1, 2, 5, 6]}


async def test_replayed_messages_come_next(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    await reader.drain()
    await publish(database, *"d")
    await store.replay(database, reader.id, store.Selection(start_seq=2))
    assert await peek(reader) == {"next": [2, 3, 4]}
    assert await peek(reader, 2) == {"next": [2, 3]}


async def test_removed_messages_are_not_shown(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    await reader.lease(limit=2)
    await database.fetch("delete from headrace_streams.orders where seq = 1")
    assert await peek(reader) == {"in_flight": [2], "next": [3]}


async def test_a_consumer_that_is_done_or_deleted_shows_no_messages(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    assert await peek(reader) == {}
    await store.delete_consumer(database, reader.id)
    with pytest.raises(UnknownConsumer):
        await peek(reader)


# --- the messages of a stream


async def seqs(database: store.Database, limit: int = 10, newest: bool = False, **chosen: Any) -> list[int]:
    found = await store.messages(database, "orders", store.SeqRange(**chosen), limit=limit, newest=newest)
    return [message.seq for message in found]


async def test_the_first_and_the_newest_messages_come_in_the_order_of_seq(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    await publish(database, *"abcde")
    assert await seqs(database, limit=2) == [1, 2]
    assert await seqs(database, limit=2, newest=True) == [4, 5]
    assert await seqs(database, start_seq=3) == [3, 4, 5]
    assert await seqs(database, start_seq=3, limit=9, newest=True) == [3, 4, 5]


async def test_messages_are_chosen_by_filters_and_conditions(database: store.Database, declare: Declare) -> None:
    await declare()
    await publish(database, "eu.a", "us.a", "eu.b", "us.b")
    assert await seqs(database, filters=("eu.>",)) == [1, 3]
    assert await seqs(database, filters=("eu.>",), limit=1, newest=True) == [3]
    assert await seqs(database, where=conditions.parse("data.n >= 2")) == [3, 4]


async def test_a_message_has_all_that_was_published(database: store.Database, declare: Declare) -> None:
    await declare()
    await store.publish(database, "orders", "a", '{"x": [1, null]}', '{"h": "é"}')
    (found,) = await store.messages(database, "orders")
    assert (found.seq, found.key, found.data, found.headers) == (1, "a", {"x": [1, None]}, {"h": "é"})
    assert found.created_at.tzinfo is not None


@pytest.mark.parametrize("compacted", [False, True])
async def test_the_latest_of_a_key(database: store.Database, compacted: bool) -> None:
    await store.create_stream(database, StreamSpec(name="orders", one_message_per_key=compacted))
    for key in "abab":
        await publish(database, key)
    (found,) = await store.messages(database, "orders", store.SeqRange(filters=["a"]), limit=1, newest=True)
    assert (found.seq, found.key) == (3, "a")
    assert await store.messages(database, "orders", store.SeqRange(filters=["c"]), limit=1, newest=True) == []


async def test_an_unknown_stream_has_no_messages_to_show(database: store.Database) -> None:
    with pytest.raises(UnknownStream, match="nowhere"):
        await store.messages(database, "nowhere")
