"""`Admin.cancel`: what an operator asks for, gets as an answer, and sees afterwards."""

from __future__ import annotations

import pytest
import pytest_asyncio

from headrace import InvalidInput, InvalidKey, store
from headrace.admin import Admin
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.records import Cancellation
from headrace.model.specs import ConsumerSpec
from headrace.model.watching.journeys import JourneyStop
from tests.support.readers import Clock, publish

pytestmark = pytest.mark.asyncio

SHIP = ("orders", "ship")


@pytest_asyncio.fixture
async def admin(database: store.Database) -> Admin:
    admin = Admin(database)
    await admin.create_stream("orders")
    await admin.create_consumer(ConsumerSpec(stream="orders", name="ship"))
    return admin


async def stop_of(admin: Admin, seq: int) -> JourneyStop:
    found = await admin.journey("orders", seq)
    assert found is not None
    [stop] = found.consumers
    return stop


async def test_the_answer_counts_messages_by_what_becomes_of_them(admin: Admin, database: store.Database) -> None:
    await publish(database, *"abcd")
    held, done = await admin.receive(*SHIP, limit=2)
    await admin.ack(*SHIP, [done.ack_id])
    assert await admin.cancel(*SHIP, seqs=[1, 2, 3, 3, 9]) == Cancellation(cancelled=1, stopping=1, not_waiting=2)
    assert await admin.cancel(*SHIP, key="d") == Cancellation(cancelled=1)
    assert await admin.ack(*SHIP, [held.ack_id]) == []
    assert await admin.receive(*SHIP, limit=9) == []


async def test_by_unique_key_the_last_message_is_cancelled(
    admin: Admin, database: store.Database, clock: Clock
) -> None:
    await store.publish(database, "orders", "a", "1", options=PublishOptions(unique_key="one"))
    assert await admin.cancel(*SHIP, unique_key="one") == Cancellation(cancelled=1)
    assert await admin.cancel(*SHIP, unique_key="other") == Cancellation(cancelled=0)
    later = PublishOptions(unique_key="two", deliver_at=clock.now)
    await store.publish(database, "orders", "a", "1", options=later)
    with pytest.raises(InvalidInput, match="'two' is not published yet"):
        await admin.cancel(*SHIP, unique_key="two")


async def test_messages_are_named_in_one_way(admin: Admin) -> None:
    for given in ({}, {"seqs": [1], "key": "a"}, {"key": "a", "unique_key": "b"}):
        with pytest.raises(InvalidInput, match="in one way"):
            await admin.cancel(*SHIP, **given)
    for seqs in ([], [0], range(1, 10_002)):
        with pytest.raises(InvalidInput):
            await admin.cancel(*SHIP, seqs=seqs)
    with pytest.raises(InvalidKey):
        await admin.cancel(*SHIP, key="a..b")


async def test_a_cancellation_is_in_the_audit_log_if_it_cancels_anything(
    admin: Admin, database: store.Database
) -> None:
    await publish(database, *"abb")
    await admin.cancel(*SHIP, seqs=[7])
    await admin.cancel(*SHIP, seqs=[1])
    await admin.cancel(*SHIP, key="b")
    entries = [entry for entry in await admin.audit(limit=10) if entry.action == "consumer.cancel"]
    assert [entry.details["messages"] for entry in entries] == [2, 1]
    assert (entries[0].details["key"], entries[0].object.name, entries[0].stream) == ("b", "ship", "orders")


async def test_a_journey_says_that_a_message_was_cancelled(admin: Admin, database: store.Database) -> None:
    await publish(database, *"abcde")
    held = await admin.receive(*SHIP, limit=3)
    await admin.nack(*SHIP, [held[2].ack_id])
    await admin.cancel(*SHIP, seqs=[1, 2, 3, 4])
    for seq in (3, 4):
        stop = await stop_of(admin, seq)
        assert (stop.state, stop.cancelled_by) == ("cancelled", await database.fetchval("select session_user"))
        assert stop.cancelled_at is not None
    stop = await stop_of(admin, 1)
    assert stop.state == "in_flight"
    assert "cancellation was requested" in stop.reason
    await admin.ack(*SHIP, [held[0].ack_id])
    await admin.nack(*SHIP, [held[1].ack_id])
    assert [one.seq for one in await admin.receive(*SHIP, limit=9)] == [5]
    stop = await stop_of(admin, 1)
    assert (stop.state, stop.reason.partition(" before")[0]) == ("acked", "Its handler was done")
    for seq in (2, 4):
        assert (await stop_of(admin, seq)).state == "cancelled"
    assert (await stop_of(admin, 5)).cancelled_at is None
