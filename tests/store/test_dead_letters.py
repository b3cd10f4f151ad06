"""Dead letters: what happens to messages that are rejected or fail too often, and how to redrive or
discard them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import store
from headrace.model import conditions
from headrace.model.conditions.selections import DeadLetterCriteria
from headrace.model.errors import InvalidInput
from headrace.model.outcomes import Failure
from tests.conftest import Connect, Declare
from tests.support import notifications
from tests.support.readers import Reader, publish

pytestmark = pytest.mark.asyncio


async def exhaust(reader: Reader, seq: int) -> None:
    """Lease the first message of each key, exhaust this one (`max_deliver` is 1), and release the rest."""
    batch = await reader.lease("exhauster", 1_000)
    assert seq in batch.seqs
    await reader.nack(batch, seq, error="boom")
    if rest := [other for other in batch.seqs if other != seq]:
        await reader.release(batch, *rest)


async def test_a_message_is_dead_lettered_after_max_deliver_attempts_and_its_key_goes_on(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=3)
    await publish(database, *"aa")
    for attempt in (1, 2, 3):
        batch = await reader.lease(limit=1)
        assert (batch.seqs, (batch.attempts or [1])[0]) == ([1], attempt)
        await reader.nack(batch, error=f"boom {attempt}")
    assert await reader.drain() == [2]
    assert [(dead.seq, dead.attempts, dead.reason) for dead in await reader.dead_letters()] == [(1, 3, "exhausted")]


async def test_a_dead_letter_keeps_the_payload_the_error_the_traceback_and_the_attempts(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=2)
    await store.publish(database, "orders", "orders.us.42", '{"total": 12}', '{"trace": "abc"}')
    sent = (await reader.lease()).created_at[0]
    reader.clock.advance(31)
    await reader.fail(await reader.lease(), Failure("retry", 1, "ValueError: no", "Traceback …"))
    (dead,) = await reader.dead_letters()
    assert (dead.key, dead.data, dead.headers, dead.created_at) == (
        "orders.us.42",
        {"total": 12},
        {"trace": "abc"},
        sent,
    )
    assert (dead.attempts, dead.reason, dead.error, dead.traceback) == (2, "exhausted", "ValueError: no", "Traceback …")
    assert (dead.blocks, dead.died_at) == (False, reader.clock.now)


@pytest.mark.parametrize(("kind", "reason"), [("reject", "rejected"), ("invalid", "invalid")])
@pytest.mark.parametrize("on_exhausted", ["dead_letter", "block", "drop"])
async def test_a_rejected_message_is_a_dead_letter_at_once_whatever_on_exhausted_says(
    database: store.Database, declare: Declare, kind: str, reason: str, on_exhausted: str
) -> None:
    reader = await declare(on_exhausted=on_exhausted)
    await publish(database, *"aa")
    batch = await reader.lease(limit=1)
    await reader.fail(batch, Failure(kind, None, "no use", None))  # type: ignore[arg-type]
    (dead,) = await reader.dead_letters()
    assert (dead.seq, dead.attempts, dead.reason, dead.blocks) == (1, 1, reason, False)
    assert await reader.drain() == [2]


async def test_a_message_without_max_deliver_is_never_dead_lettered(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=-1)
    await publish(database, "a")
    for _ in range(30):
        await reader.nack(await reader.lease())
    assert (await reader.lease()).attempts == [31]
    assert await reader.dead_letters() == []


async def test_on_exhausted_drop_keeps_no_dead_letter(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1, on_exhausted="drop")
    await publish(database, *"aa")
    await exhaust(reader, 1)
    assert await reader.drain() == [2]
    assert await reader.dead_letters() == []


async def test_the_dead_letter_of_an_expired_last_attempt_has_an_error(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=1, ack_wait=30)
    await publish(database, *"a")
    await reader.lease()
    reader.clock.advance(30)
    assert (await reader.lease("bob")).seqs == []
    (dead,) = await reader.dead_letters()
    assert dead.reason == "exhausted"
    assert "lease expired" in (dead.error or "")


async def test_a_blocked_key_waits_for_an_operator_and_delays_no_other_key(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, *"aabab")
    await exhaust(reader, 1)
    assert await reader.drain() == [3, 5]
    await publish(database, *"aabb")
    assert await reader.drain() == [8, 9]
    info = await reader.info()
    assert (info.blocked, info.parked, info.dead_letters) == (5, 0, 1)
    assert [dead.blocks for dead in await reader.dead_letters()] == [True]


async def test_a_blocked_key_leaves_room_for_the_others(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block", max_ack_pending=10)
    await publish(database, "bad")
    await exhaust(reader, 1)
    await publish(database, *["bad"] * 11_000, "good")  # more than the limit of parked messages
    assert await reader.drain(look=5_000) == [11_002]


async def test_a_redriven_block_goes_on_from_the_message_that_blocked(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, *"aba")
    await exhaust(reader, 1)
    assert await reader.drain() == [2]
    await publish(database, *"ab")
    assert await reader.redrive(1) == 1
    batch = await reader.lease()
    assert (batch.seqs, batch.attempts) == ([1, 3, 4, 5], [1, 1, 1, 1])
    assert await reader.dead_letters() == []
    await reader.ack_all(batch)
    assert (await reader.info()).blocked == 0


async def test_a_discarded_block_goes_on_after_the_message_that_blocked(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, *"aba")
    await exhaust(reader, 1)
    assert await reader.drain() == [2]
    await publish(database, *"a")
    assert await reader.discard(1) == 1
    assert await reader.drain() == [3, 4]
    assert (await reader.info()).blocked == 0


async def test_a_run_that_is_blocked_while_the_rest_is_in_flight_joins_its_key(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=2, on_exhausted="block")
    await publish(database, *"aaab")
    await reader.nack(await reader.lease(limit=1))
    batch = await reader.lease(limit=3)
    assert (await reader.lease("bob")).seqs == [4]
    await reader.nack(batch, 1)
    await reader.release(batch, 2, 3)
    assert await reader.drain("bob") == []
    assert (await reader.info()).blocked == 3
    await reader.redrive()
    assert await reader.drain("bob") == [1, 2, 3]


@pytest.mark.parametrize(("due_while_blocked", "attempt"), [(False, 2), (True, 1)])
async def test_a_retry_that_falls_due_while_its_key_is_blocked_begins_at_its_first_attempt(
    database: store.Database, declare: Declare, due_while_blocked: bool, attempt: int
) -> None:
    reader = await declare(max_deliver=2, on_exhausted="block")
    await publish(database, *"aa")
    batch = await reader.lease()
    await reader.nack(batch, 2, delay=10)
    await reader.nack(batch, 1)
    await reader.nack(await reader.lease())
    assert (await reader.lease()).due_in is None
    if due_while_blocked:
        reader.clock.advance(10)
        assert (await reader.lease()).seqs == []
    assert await reader.discard(1) == 1
    batch = await reader.lease()
    assert (batch.seqs == [2]) == due_while_blocked
    if not due_while_blocked:
        assert batch.due_in == pytest.approx(10)
        reader.clock.advance(10)
        batch = await reader.lease()
    assert (batch.seqs, (batch.attempts or [1])[0]) == ([2], attempt)


async def test_a_late_message_of_a_blocked_key_is_delivered_after_the_redrive(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Its seq is below that of the blocking message and of everything that is parked by then."""
    for way_out in ("redrive", "discard"):
        reader = await declare(way_out, max_deliver=1, on_exhausted="block")
        await reader.seek(None)
        late = await connect()
        transaction = late.transaction()
        await transaction.start()
        (early,) = [await store.publish(late, "orders", "a", "1")]
        blocking = await store.publish(database, "orders", "a", "2")
        assert blocking is not None
        await exhaust(reader, blocking)
        await publish(database, *"bcd")
        assert len(await reader.drain()) == 3
        await transaction.commit()
        assert await reader.drain() == []
        assert await (reader.redrive() if way_out == "redrive" else reader.discard()) == 1
        assert await reader.drain() == ([early, blocking] if way_out == "redrive" else [early])


async def test_a_late_message_that_was_parked_when_its_key_got_blocked_is_delivered_after_the_redrive(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await publish(late, "a")
    await publish(database, *"ab")
    ann = await reader.lease("ann", 1)
    await transaction.commit()
    assert await reader.drain("bob") == [3]
    await reader.nack(ann)
    await publish(database, *"cd")
    assert await reader.drain("bob") == [4, 5]
    await reader.discard()
    assert await reader.drain("bob") == [1]


async def test_a_run_that_is_exhausted_as_a_whole_blocks_its_key_until_all_of_it_is_redriven(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block", ack_wait=30)
    await publish(database, *"aaa")
    await reader.lease("ann", 2)
    reader.clock.advance(30)
    assert await reader.drain("bob") == []
    assert [(dead.seq, dead.blocks) for dead in await reader.dead_letters()] == [(1, True), (2, True)]
    assert await reader.redrive(1) == 2
    assert await reader.drain("bob") == [1, 2, 3]
    assert await reader.dead_letters() == []


async def test_after_a_discard_the_next_dead_letter_blocks_the_key(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block", ack_wait=30)
    await publish(database, *"aaa")
    await reader.lease("ann", 2)
    reader.clock.advance(30)
    assert await reader.drain("bob") == []
    assert await reader.discard(1) == 1
    assert await reader.drain("bob") == []
    assert [(dead.seq, dead.blocks) for dead in await reader.dead_letters()] == [(2, True)]
    assert await reader.redrive() == 1
    assert await reader.drain("bob") == [2, 3]


async def test_a_message_removed_from_its_stream_does_not_block_its_key_for_ever(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(database, *"aa")
    batch = await reader.lease(limit=1)
    await database.fetch("delete from headrace_streams.orders where seq = 1")
    await reader.nack(batch)
    assert await reader.drain() == [2]
    assert await reader.dead_letters() == []


async def test_a_redriven_message_starts_from_its_first_attempt(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=2)
    await publish(database, *"ab")
    for _ in range(2):
        await reader.nack(await reader.lease())
    assert await reader.redrive(2) == 1
    assert await reader.redrive(2, 77) == 0
    again = await reader.lease()
    assert (again.seqs, again.attempts) == ([2], [1])
    assert [dead.seq for dead in await reader.dead_letters()] == [1]


async def test_a_redriven_message_that_dies_again_is_one_dead_letter(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=1)
    await publish(database, *"a")
    await reader.nack(await reader.lease(), error="first")
    await reader.redrive()
    await reader.reject(await reader.lease(), error="second")
    assert [(d.seq, d.reason, d.error) for d in await reader.dead_letters()] == [(1, "rejected", "second")]


async def test_an_old_dead_letter_is_redriven_far_below_the_cursor(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, "a")
    await reader.reject(await reader.lease())
    await publish(database, *["b"] * 500)
    assert len(await reader.drain()) == 500
    assert await reader.redrive() == 1
    await publish(database, "a")
    assert await reader.drain() == [1, 502]


async def test_a_message_redriven_while_in_flight_is_not_delivered_twice(
    database: store.Database, declare: Declare
) -> None:
    """A dead letter stays when its consumer seeks back, so its message may be leased again in the meantime."""
    reader = await declare(ordered=False)
    await publish(database, *"ab")
    await reader.reject(await reader.lease(), 1)
    await reader.seek(0)
    ann = await reader.lease("ann")
    assert ann.seqs == [1, 2]
    assert await reader.redrive() == 1
    assert (await reader.lease("bob")).seqs == []
    assert await reader.nack(ann, 1) == []
    assert await reader.drain("bob") == [1]


async def test_redriven_messages_ahead_of_the_cursor_come_once(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"ab")
    await reader.reject(await reader.lease())
    await reader.seek(0)
    assert await reader.redrive() == 2
    assert await reader.drain() == [1, 2]


async def test_dead_letters_are_listed_page_by_page(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abcde")
    await reader.reject(await reader.lease())
    page = await store.dead_letters(database, reader.id, limit=2)
    assert [dead.seq for dead in page] == [1, 2]
    assert [dead.seq for dead in await store.dead_letters(database, reader.id, above=2, limit=2)] == [3, 4]
    assert await reader.discard() == 5
    assert await reader.dead_letters() == []
    assert await reader.drain() == []


@pytest.mark.parametrize("data", [r'"\ud800"', "1e999", "[" * 3_000 + "]" * 3_000])
async def test_a_dead_letter_that_python_can_not_decode_does_not_hide_the_others(
    database: store.Database, declare: Declare, data: str
) -> None:
    """Messages that no handler can decode become dead letters, so they are typical here."""
    reader = await declare()
    await store.publish(database, "orders", "a", data)
    await publish(database, "b")
    await reader.reject(await reader.lease())
    assert [dead.data for dead in await reader.dead_letters()] == [data, {"n": 0}]


# --- selecting dead letters


async def dead(reader: Reader, *keys: str) -> list[int]:
    """Publish to these keys and make all the messages dead letters. Their data counts up from `{"n": 0}`."""
    await publish(reader.executor, *keys)
    batch = await reader.lease("undertaker", 1_000)
    for seq in batch.seqs:
        await reader.nack(batch, seq, error=f"boom {seq}")
    return batch.seqs


async def test_dead_letters_are_listed_by_filter_and_condition(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1)
    await dead(reader, "eu.a", "us.a", "eu.b", "us.b")

    async def listed(*selection: DeadLetterCriteria, **page: Any) -> list[int]:
        return [one.seq for one in await store.dead_letters(database, reader.id, *selection, **page)]

    assert await listed() == [1, 2, 3, 4]
    assert await listed(DeadLetterCriteria(filter=("eu.>",))) == [1, 3]
    assert await listed(DeadLetterCriteria(where=conditions.parse("data.n >= 1")), limit=2) == [2, 3]
    assert await listed(DeadLetterCriteria(filter=("eu.>",)), above=1) == [3]


@pytest.mark.parametrize("verb", ["redrive", "discard"])
@pytest.mark.parametrize(
    ("chosen", "seqs"),
    [
        ({}, [1, 2, 3, 4]),
        ({"seqs": [4, 2, 99]}, [2, 4]),
        ({"seqs": []}, []),
        ({"key": "eu.a"}, [1, 4]),
        ({"filter": ("eu.>",)}, [1, 3, 4]),
        ({"where": "data.n >= 2"}, [3, 4]),
        ({"key": "eu.a", "where": "data.n >= 2"}, [4]),
        ({"filter": ("us.>",), "seqs": [1, 2]}, [2]),
    ],
)
async def test_selection_takes_dead_letters_that_match_all_criteria(
    database: store.Database, declare: Declare, verb: str, chosen: dict[str, Any], seqs: list[int]
) -> None:
    reader = await declare(max_deliver=1)
    await dead(reader, "eu.a", "us.a", "eu.b", "eu.a")
    if "where" in chosen:
        chosen = {**chosen, "where": conditions.parse(chosen["where"])}
    take, selection = getattr(store, verb), DeadLetterCriteria(**chosen)
    assert await take(database, reader.id, selection=selection, dry_run=True) == len(seqs)
    assert [one.seq for one in await reader.dead_letters()] == [1, 2, 3, 4]
    assert await take(database, reader.id, selection=selection) == len(seqs)
    assert [one.seq for one in await reader.dead_letters()] == [seq for seq in (1, 2, 3, 4) if seq not in seqs]
    assert await reader.drain() == (seqs if verb == "redrive" else [])


async def test_redriven_messages_of_a_key_come_in_order_before_its_tail(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(max_deliver=1)
    await dead(reader, *"abab")
    await publish(database, *"ab")
    assert await store.redrive(database, reader.id, [4, 1, 3, 2]) == 4
    batch = await reader.lease()
    assert batch.seqs == [1, 2, 3, 4, 5, 6]
    assert batch.attempts == [1] * 6


async def test_a_dry_run_counts_those_that_block_the_same_key(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await dead(reader, *"aaab")
    assert await store.redrive(database, reader.id, [2], dry_run=True) == 3
    assert await store.discard(database, reader.id, [2], dry_run=True) == 1
    assert await store.redrive(database, reader.id, [2]) == 3
    assert await reader.drain() == [1, 2, 3]


async def test_a_dead_letter_stays_after_retention_has_removed_its_message(
    database: store.Database, declare: Declare
) -> None:
    """It can't be delivered again, and is all that is left of the message."""
    reader = await declare(max_deliver=1)
    await dead(reader, *"abc")
    await database.fetch("delete from headrace_streams.orders where seq < 3")
    assert await store.redrive(database, reader.id, dry_run=True) == 1
    assert await reader.redrive() == 1
    assert await reader.drain() == [3]
    assert [one.seq for one in await reader.dead_letters()] == [1, 2]
    assert await reader.discard() == 2


async def test_a_redrive_notifies_waiting_workers(database: store.Database, declare: Declare, connect: Connect) -> None:
    reader = await declare(max_deliver=1)
    await dead(reader, "a")
    heard = asyncio.Event()
    listener = await connect()
    await notifications.listen(listener, lambda *_: heard.set())
    await store.wait(database, reader.id, 60)
    await reader.redrive()
    async with asyncio.timeout(10):
        await heard.wait()


async def test_without_order_a_retry_falls_due_though_a_dead_letter_blocks_its_key(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare(ordered=False, on_exhausted="block", max_deliver=2)
    await publish(database, "a", "a")
    batch = await reader.lease()
    await reader.nack(batch, 1, delay=0.0)
    again = await reader.lease()
    assert again.seqs == [1]
    await reader.nack(again)
    await reader.nack(batch, 2, delay=10.0)
    assert [letter.seq for letter in await reader.dead_letters()] == [1]
    assert (await reader.lease()).due_in == 10.0


# --- while later messages of the key are in flight


@pytest.mark.parametrize("on_exhausted", ["dead_letter", "block"])
async def test_a_key_at_work_ends_with_its_latest_message_after_a_redrive(
    database: store.Database, declare: Declare, on_exhausted: str
) -> None:
    reader = await declare(max_deliver=1, on_exhausted=on_exhausted)
    await publish(database, *"aab")
    ann = await reader.lease("ann")
    await reader.nack(ann, 1)
    assert await reader.redrive() == 1
    for who in ("ann", "bob"):
        assert await reader.drain(who) == []
    assert await reader.ack(ann, 2, 3) == []
    assert await reader.drain("bob") == [1, 2]


async def test_an_unknown_criterion_selects_nothing_more(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1)
    await dead(reader, "eu.a", "us.a")
    with pytest.raises(InvalidInput, match="There is no criterion 'filters'"):
        await store.discard(database, reader.id, selection=DeadLetterCriteria(filters=["eu.>"]))  # type: ignore[typeddict-unknown-key]
    assert [one.seq for one in await reader.dead_letters()] == [1, 2]
