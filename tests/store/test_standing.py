"""The state of the latest message of a key at each consumer, in every situation."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import store
from headrace.model import conditions
from headrace.model.errors import UnknownStream
from headrace.model.outcomes import Failure
from headrace.model.records import Standing
from tests.conftest import Connect, Declare
from tests.support.readers import Reader, publish

pytestmark = pytest.mark.asyncio


async def _latest(executor: store.Executor, key: str = "a", stream: str = "orders") -> int:
    (message,) = await store.messages(executor, stream, store.SeqRange(filters=[key]), limit=1, newest=True)
    return message.seq


async def _standing(reader: Reader, key: str = "a") -> Standing:
    standings = await store.standing(reader.executor, "orders", await _latest(reader.executor, key), key)
    return next(one for one in standings if one.consumer == reader.spec.name)


async def _state(reader: Reader, key: str = "a") -> tuple[str, int | None]:
    found = await _standing(reader, key)
    return found.state, found.attempts


async def test_a_message_above_the_cursor_is_pending(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    assert await _state(reader) == ("pending", 0)


async def test_a_message_that_does_not_match_is_filtered_by_key_or_by_content(declare: Declare) -> None:
    by_key = await declare("keys", filters=("b.>",))
    by_content = await declare("content", where=conditions.parse("data.n > 10"))
    await publish(by_key.executor, "a")
    assert await _state(by_key) == ("filtered", None)
    assert await _state(by_content) == ("filtered", None)


async def test_a_leased_message_is_in_flight_with_its_expiry_and_owner(declare: Declare) -> None:
    reader = await declare(ack_wait=30.0)
    await publish(reader.executor, "a", "b")
    await reader.lease()
    found = await _standing(reader)
    assert (found.state, found.attempts) == ("in_flight", 1)
    assert found.until == reader.clock.now + timedelta(seconds=30)
    assert found.owner is not None


async def test_a_failed_message_is_parked_until_it_is_due_and_counts_its_attempts(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    await reader.nack(await reader.lease(), delay=60.0)
    found = await _standing(reader)
    assert (found.state, found.attempts) == ("parked", 1)
    assert found.until == reader.clock.now + timedelta(seconds=60)
    reader.clock.advance(61)
    await reader.lease()
    assert await _state(reader) == ("in_flight", 2)


async def test_an_acked_message_is_acked(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    await reader.ack_all(await reader.lease())
    assert await _state(reader) == ("acked", None)


async def test_a_rejected_message_is_a_dead_letter_and_pending_again_after_a_seek(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    await reader.fail(await reader.lease(), Failure("reject", error="no"))
    assert await _state(reader) == ("dead_letter", 1)
    await store.seek(reader.executor, reader.id, 0)
    assert await _state(reader) == ("pending", 0)


async def test_a_message_behind_a_blocked_key_is_blocked(declare: Declare) -> None:
    reader = await declare(on_exhausted="block", max_deliver=1)
    await publish(reader.executor, "a")
    await reader.nack(await reader.lease())
    await publish(reader.executor, "a")
    await reader.lease()
    assert await _state(reader) == ("blocked", 0)


async def test_a_message_that_is_to_be_replayed_is_replaying(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    await reader.ack_all(await reader.lease())
    assert await store.replay(reader.executor, reader.id, store.Selection()) == 1
    assert await _state(reader) == ("replaying", 0)


async def test_a_message_that_commits_late_below_the_cursor_is_pending(declare: Declare, connect: Connect) -> None:
    reader = await declare()
    slow: Any = await connect()
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute("select headrace.publish('orders', 'a', '1')")
    await publish(reader.executor, "b")
    await reader.ack_all(await reader.lease())
    await transaction.commit()
    assert await _state(reader) == ("pending", 0)


async def test_the_state_is_that_of_the_latest_message_of_the_key(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    await reader.ack_all(await reader.lease())
    await publish(reader.executor, "b", "a")
    assert await _latest(reader.executor) == 3
    assert await _state(reader) == ("pending", 0)
    assert await _state(reader, "b") == ("pending", 0)


async def test_consumers_are_listed_by_name_and_a_stream_without_consumers_has_none(
    declare: Declare, database: store.Database
) -> None:
    for name in ("zoe", "ann"):
        await declare(name)
    await publish(database, "a")
    assert [one.consumer for one in await store.standing(database, "orders", 1, "a")] == ["ann", "zoe"]
    await store.create_stream(database, "lonely")
    await publish(database, "a", stream="lonely")
    assert await store.standing(database, "lonely", 1, "a") == []


async def test_an_unknown_stream_is_reported(database: store.Database) -> None:
    with pytest.raises(UnknownStream):
        await store.standing(database, "nothing", 1, "a")
