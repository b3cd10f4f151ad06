"""A message's journey: what became of it in each consumer, in every situation."""

from __future__ import annotations

import struct
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from headrace import store
from headrace.admin.base import Base
from headrace.admin.journeys import read_journey
from headrace.model import conditions
from headrace.model.errors import InvalidInput, UnknownStream
from headrace.model.outcomes import Failure, HandlingReport, Settlement
from headrace.model.records import ConsumerAtWork, WorkerFacts
from headrace.model.watching.journeys import Journey, JourneyStop, Trace, trace_of
from tests.conftest import Connect, Declare
from tests.store.test_bounded_cost import touched
from tests.support.readers import Reader, owner, publish

pytestmark = pytest.mark.asyncio


async def _journey(reader: Reader, seq: int = 1) -> Journey:
    found = await read_journey(Base(reader.executor), reader.spec.stream, seq, now=reader.clock.now)  # type: ignore[arg-type]
    assert found is not None
    return found


async def _stop(reader: Reader, seq: int = 1) -> JourneyStop:
    return next(stop for stop in (await _journey(reader, seq)).consumers if stop.consumer == reader.spec.name)


async def test_a_message_above_the_position_waits(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    stop = await _stop(reader)
    assert (stop.state, stop.attempts, stop.behind) == ("waiting", 0, None)
    assert "position, 0, has not reached" in stop.reason


async def test_a_message_behind_others_of_its_key_names_the_one_that_it_waits_for(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a", "b", "a", "a")
    await reader.lease(limit=1)
    assert ((await _stop(reader, 3)).state, (await _stop(reader, 3)).behind) == ("waiting", 1)
    assert (await _stop(reader, 2)).behind is None
    await reader.lease("bob")  # the messages of the busy key are parked
    third, fourth = await _stop(reader, 3), await _stop(reader, 4)
    assert (third.state, third.behind) == ("parked", 1)
    assert (fourth.state, fourth.behind) == ("parked", 1)
    assert "which is in flight" in third.reason


async def test_a_message_in_flight_has_its_lease_and_the_process_that_reports_the_owner(declare: Declare) -> None:
    reader = await declare(ack_wait=30.0)
    await publish(reader.executor, "a", "a")
    await reader.lease("ann")
    stop = await _stop(reader)
    assert (stop.state, stop.attempt, stop.owner) == ("in_flight", 1, None)
    assert stop.lease_until == reader.clock.now + timedelta(seconds=30)
    assert "An HTTP client has it, or a process that has not reported it yet." in stop.reason
    process = uuid4()
    facts = WorkerFacts(
        host="mill", pid=7, kind="run", version="1", started_at=reader.clock.now,
        consumers=[ConsumerAtWork(stream="orders", name="ship", owner=str(owner("ann")))],
    )  # fmt: skip
    await store.record_heartbeat(reader.executor, process, facts)
    stop = await _stop(reader)
    assert stop.owner is not None
    assert (stop.owner.process_id, stop.owner.host, stop.owner.pid) == (str(process), "mill", 7)
    assert (await _stop(reader, 2)).behind == 1
    reader.clock.advance(31)
    assert "lease has expired" in (await _stop(reader)).reason


async def test_a_message_acked_in_a_transaction_is_acked_before_its_lease_is_settled(
    declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(reader.executor, "a", "b")
    batch = await reader.lease()
    connection: Any = await connect()
    async with connection.transaction():
        await reader.ack_within(connection, batch, 1)
        assert (await _stop(reader)).state == "in_flight", "it is not committed"
    stop = await _stop(reader)
    assert (stop.state, stop.acked_by) == ("acked", reader.clock.now)
    assert (await _stop(reader, 2)).state == "in_flight"
    (standing,) = await store.standing(reader.executor, "orders", 1, "a")
    assert standing.state == "acked"


async def test_an_acked_message_says_that_the_time_is_not_remembered(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    await reader.ack_all(await reader.lease())
    stop = await _stop(reader)
    assert (stop.state, stop.acked_by, stop.attempts) == ("acked", None, None)
    assert "When is not remembered." in stop.reason


async def test_a_failed_message_is_parked_until_it_is_due(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a", "a")
    await reader.nack(await reader.lease(limit=1), delay=60.0)
    await reader.lease()
    first, second = await _stop(reader), await _stop(reader, 2)
    assert (first.state, first.attempts, first.until) == ("parked", 1, reader.clock.now + timedelta(seconds=60))
    assert (second.state, second.behind, second.until) == ("parked", 1, None)
    reader.clock.advance(61)
    assert (await _stop(reader)).reason == "It is due."


async def test_a_dead_letter_has_its_error(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    await reader.fail(await reader.lease(), Failure("reject", error="no", error_type="shop.NoStock"))
    stop = await _stop(reader)
    assert (stop.state, stop.error, stop.error_type, stop.attempts) == ("dead_letter", "no", "shop.NoStock", 1)
    assert stop.died_at == reader.clock.now
    await store.seek(reader.executor, reader.id, 0)
    assert (await _stop(reader)).state == "waiting"


async def test_messages_of_a_blocked_key_name_the_dead_letter_that_blocks_it(declare: Declare) -> None:
    reader = await declare(on_exhausted="block", max_deliver=1)
    await publish(reader.executor, "a")
    await reader.nack(await reader.lease(), error="no")
    await publish(reader.executor, "a")
    ahead = await _stop(reader, 2)
    assert (ahead.state, ahead.behind) == ("blocked", 1), "the position has not reached it"
    await reader.lease()
    head, tail = await _stop(reader), await _stop(reader, 2)
    assert (head.state, head.behind, head.error) == ("blocked", None, "no")
    assert (tail.state, tail.behind) == ("blocked", 1)
    await reader.discard()
    assert (await _stop(reader)).state == "acked"
    assert (await _stop(reader, 2)).state == "parked"


async def test_a_message_to_be_replayed_is_replaying(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    await reader.ack_all(await reader.lease())
    await store.replay(reader.executor, reader.id, store.Selection())
    assert (await _stop(reader)).state == "replaying"


async def test_a_late_arrival_in_a_hole_waits(declare: Declare, connect: Connect) -> None:
    reader = await declare()
    slow: Any = await connect()
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute("select headrace.publish('orders', 'a', '1')")
    await publish(reader.executor, "b")
    await reader.ack_all(await reader.lease())
    assert await read_journey(Base(reader.executor), "orders", 1) is None, "it is not committed"  # type: ignore[arg-type]
    await transaction.commit()
    stop = await _stop(reader)
    assert stop.state == "waiting"
    assert "after the position, 2, had passed it" in stop.reason


async def test_a_message_that_does_not_match_is_filtered_by_its_key_or_by_its_content(declare: Declare) -> None:
    by_key = await declare("keys", filters=("b.>",))
    by_content = await declare("content", where=conditions.parse("data.n > 10"))
    await publish(by_key.executor, "a")
    key, content = await _stop(by_key), await _stop(by_content)
    assert (key.state, content.state) == ("filtered", "filtered")
    assert "Its key does not match" in key.reason
    assert "does not meet the condition" in content.reason


async def test_a_message_from_before_the_consumer_began_is_skipped(declare: Declare, database: store.Database) -> None:
    await declare("first")
    await publish(database, "a", "b")
    later = await declare("later", deliver_policy="new")
    third = await declare("third", deliver_policy="by_start_seq", start_seq=2)
    timed = await declare("timed", deliver_policy="by_start_time", start_time=(await later.info()).created_at)
    for reader, known in ((later, "was created"), (third, "at the seq 2"), (timed, "began at")):
        stop = await _stop(reader)
        assert stop.state == "skipped", reader.spec.name
        assert known in stop.reason
        assert "not remembered" in stop.reason
    assert (await _stop(third, 2)).state == "waiting"
    await third.drain()
    assert (await _stop(third, 2)).state == "acked"


async def test_an_expired_message_is_skipped_and_one_that_was_passed_may_have_been(declare: Declare) -> None:
    reader = await declare()
    await store.publish(reader.executor, "orders", "a", "1", '{"headrace-expires-in": 60}')
    reader.clock.now = (await _journey(reader)).message.created_at  # type: ignore[union-attr]
    assert (await _stop(reader)).state == "waiting"
    reader.clock.advance(61)
    assert (await _stop(reader)).state == "skipped"
    assert await reader.drain() == []
    stop = await _stop(reader)
    assert stop.state == "acked"
    assert "expired at" in stop.reason


async def test_an_erased_message_leaves_what_is_left_of_it_and_the_consumer_that_has_it_in_hand(
    declare: Declare,
) -> None:
    reader = await declare()
    await declare("other")
    await publish(reader.executor, "a", "b")
    await reader.lease(limit=1)
    await store.erase(reader.executor, "orders", [1], by="ann", reason="asked for")
    found = await _journey(reader)
    assert (found.message, found.trace, found.gone) == (None, None, "erased")
    assert found.erased is not None
    assert (found.erased.erased_by, found.erased.reason) == ("ann", "asked for")
    assert [(stop.consumer, stop.state) for stop in found.consumers] == [("ship", "in_flight")]


async def test_a_removed_message_is_known_where_it_was_missed_and_where_it_is_a_dead_letter(
    declare: Declare, database: store.Database
) -> None:
    reader, dead = await declare(), await declare("dead")
    await publish(database, "a", "b")
    await dead.reject(await dead.lease(limit=1))
    await database.fetchval("select headrace_internal.record_gap($1, 2, 1, 3, $2)", reader.id, reader.clock.now)
    await database.fetch("delete from headrace_streams.orders where seq = 1")
    found = await _journey(reader)
    assert (found.gone, found.erased) == ("removed", None)
    assert [(stop.consumer, stop.state) for stop in found.consumers] == [("dead", "dead_letter"), ("ship", "skipped")]
    assert "Retention removed messages from 1 to 2" in found.consumers[1].reason


async def test_consumers_come_by_name_and_in_pages(declare: Declare, database: store.Database) -> None:
    for name in ("zoe", "ann", "bob"):
        await declare(name)
    await publish(database, "a")
    first = await read_journey(Base(database), "orders", 1, limit=2)
    assert first is not None
    assert ([stop.consumer for stop in first.consumers], first.next) == (["ann", "bob"], "bob")
    second = await read_journey(Base(database), "orders", 1, limit=2, after=first.next)
    assert second is not None
    assert ([stop.consumer for stop in second.consumers], second.next) == (["zoe"], None)


async def test_a_paused_consumer_says_so(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    await store.pause(reader.executor, reader.id, None)
    assert (await _stop(reader)).reason.endswith("The consumer is paused.")


async def test_an_unknown_stream_and_an_invalid_seq_are_refused(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    assert await read_journey(Base(database), "orders", 1) is None
    with pytest.raises(UnknownStream):
        await read_journey(Base(database), "nothing", 1)
    with pytest.raises(InvalidInput):
        await read_journey(Base(database), "orders", 0)


async def test_the_trace_of_a_message_comes_from_its_headers(declare: Declare) -> None:
    reader = await declare()
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = msgspec.json.encode({"traceparent": f"00-{trace}-{span}-01"}).decode()
    await store.publish(reader.executor, "orders", "a", "1", headers)
    assert (await _journey(reader)).trace == Trace(trace_id=trace, span_id=span)
    raw = await read_journey(Base(reader.executor, raw=True), "orders", 1)  # type: ignore[arg-type]
    assert raw is not None
    assert raw.trace == Trace(trace_id=trace, span_id=span)
    for invalid in (
        {"traceparent": 7},
        {"traceparent": "00-0-0-01"},
        {"traceparent": f"00-{'0' * 32}-{span}-01"},
        {},
        None,
    ):
        assert trace_of(invalid) is None


async def test_a_journey_costs_the_same_however_long_the_stream_is_and_however_many_wait(
    declare: Declare, database: store.Database, connect: Connect
) -> None:
    reader = await declare(on_exhausted="block", max_deliver=1)
    await publish(database, "a")
    await reader.nack(await reader.lease())
    connection: Any = await connect()
    counts = []
    for behind in (20, 2000):
        await publish(database, *("a" for _ in range(behind)))
        await reader.drain(limit=1000, look=5000)

        async def read() -> None:
            found = await store.journey(connection, "orders", 10, "a", limit=10)
            assert (found[0].place, found[0].head) == ("tail", 1)

        counts.append(await touched(connection, read))
    assert counts[1] < counts[0] + 20, counts


async def test_a_history_says_when_and_by_which_process_a_message_was_done(declare: Declare) -> None:
    reader = await declare(history=3600.0)
    await publish(reader.executor, "a", "a")
    batch = await reader.lease()
    report = HandlingReport("host:7", [2], [None], struct.pack(">2f", 0.25, 1.0), expired=[2])
    settlement = Settlement([batch.lease_id or 0], [], [], [], report)
    await store.settle(reader.executor, reader.id, settlement, now=reader.clock.now)
    stop = await _stop(reader)
    assert (stop.state, stop.acked_by, stop.attempts) == ("acked", reader.clock.now, 1)
    assert stop.reason == "It was acked at 2030-01-01T00:00:00Z by host:7, after 0.250 s."
    (entry,) = stop.history
    assert (entry.outcome, entry.at, entry.process, entry.seconds) == ("acked", reader.clock.now, "host:7", 0.25)
    expired = await _stop(reader, 2)
    assert (expired.state, expired.acked_by) == ("skipped", None)
    await reader.seek(0)
    assert (await _stop(reader)).state == "waiting", "the history stays, and the message is delivered again"
    assert len((await _stop(reader)).history) == 1


async def test_a_removed_message_is_known_by_the_history(database: store.Database, declare: Declare) -> None:
    reader = await declare(history=3600.0)
    await publish(database, "a")
    await reader.drain()
    await database.fetch("delete from headrace_streams.orders")
    found = await _journey(reader)
    assert (found.gone, [stop.state for stop in found.consumers]) == ("removed", ["acked"])
