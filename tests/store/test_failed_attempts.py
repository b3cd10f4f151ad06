"""The last error of a message that waits for a retry: which error, when, of what type, and in which process."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from headrace import store
from headrace.admin.base import Base
from headrace.admin.journeys import read_journey
from headrace.model.outcomes import Failure, Settlement
from headrace.model.records import Batch, ConsumerAtWork, PeekedMessage, WorkerFacts
from headrace.model.text.error_text import MAX_ERROR, MAX_TYPE
from tests.conftest import Declare
from tests.support.readers import Reader, owner, publish
from tests.support.roles import Login

pytestmark = pytest.mark.asyncio

NO_STOCK = Failure("retry", 60.0, "NoStock: 3 of 4", "Traceback …", "shop.NoStock")


async def _fail(reader: Reader, batch: Batch, failure: Failure = NO_STOCK, process: str | None = "mill:7") -> None:
    """Fail all messages of a batch, as a process."""
    assert batch.lease_id is not None
    count = len(batch.seqs)
    settlement = Settlement(leases=[batch.lease_id] * count, seqs=batch.seqs, failures=[failure] * count)
    assert not await store.settle(reader.executor, reader.id, settlement, now=reader.clock.now, process=process)


async def _peeked(reader: Reader) -> PeekedMessage:
    return (await store.peek(reader.executor, reader.id))[0]


def _failure(found: Any) -> tuple[Any, ...]:
    return found.failed_at, found.error, found.error_type, found.failed_by


async def test_a_message_that_waits_for_a_retry_keeps_the_error_of_its_last_attempt(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    await _fail(reader, await reader.lease())
    expected = (reader.clock.now, "NoStock: 3 of 4", "shop.NoStock", "mill:7")
    assert _failure(await _peeked(reader)) == expected
    journey = await read_journey(Base(reader.executor), "orders", 1, now=reader.clock.now)  # type: ignore[arg-type]
    assert journey is not None
    [stop] = journey.consumers
    assert _failure(stop) == expected
    assert "Its last attempt failed at 2030-01-01T00:00:00Z." in stop.reason
    [standing] = await store.standing(reader.executor, "orders", 1, "a")
    assert (standing.failed_at, standing.error, standing.error_type) == expected[:3]
    reader.clock.advance(60)
    await _fail(reader, await reader.lease("bob"), Failure("retry", 60.0, "gone"), process=None)
    assert _failure(await _peeked(reader)) == (reader.clock.now, "gone", None, None)


async def test_a_message_that_has_not_failed_has_no_error(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a", "a", "b")
    await _fail(reader, await reader.lease(limit=1))
    await reader.release(await reader.lease(limit=1))
    failures = {one.seq: _failure(one) for one in await store.peek(reader.executor, reader.id)}
    assert failures.pop(1) == (reader.clock.now, "NoStock: 3 of 4", "shop.NoStock", "mill:7")
    assert failures == {2: (None, None, None, None), 3: (None, None, None, None)}
    reader.clock.advance(60)
    await reader.release(await reader.lease())
    assert _failure(await _peeked(reader)) == (None, None, None, None)


async def test_a_probe_of_a_breaker_that_fails_keeps_its_error(declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    await _fail(reader, await reader.lease(), Failure("release", 45.0, "ConnectError: refused", None, "ConnectError"))
    found = await _peeked(reader)
    assert (found.attempts, found.error) == (0, "ConnectError: refused")


async def test_an_error_is_kept_as_far_as_that_of_a_dead_letter(declare: Declare) -> None:
    reader = await declare(max_deliver=2)
    await publish(reader.executor, "a")
    long = Failure("retry", None, "ü" * 3000, None, "t" * 600)
    await _fail(reader, await reader.lease(), long, process="h" * 9000)
    parked = await _peeked(reader)
    await _fail(reader, await reader.lease(), long)
    [dead] = await reader.dead_letters()
    assert (parked.error, parked.error_type) == (dead.error, dead.error_type) == ("ü" * MAX_ERROR, "t" * MAX_TYPE)
    assert parked.failed_by == "h" * 500


async def test_a_message_that_blocks_its_key_shows_the_error_of_its_dead_letter(declare: Declare) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await publish(reader.executor, "a", "a")
    await _fail(reader, await reader.lease(limit=1))
    await reader.lease()  # the second message joins the tail of its key
    first, second = await store.peek(reader.executor, reader.id)
    assert (first.state, *_failure(first)) == ("blocked", reader.clock.now, "NoStock: 3 of 4", "shop.NoStock", None)
    assert (second.state, *_failure(second)) == ("blocked", None, None, None, None)
    [key] = await store.blocked_keys(reader.executor, reader.id)
    assert (key.error, key.error_type) == ("NoStock: 3 of 4", "shop.NoStock")


@pytest.mark.parametrize("reported", [True, False])
async def test_a_lease_that_expired_names_the_process_that_held_it(declare: Declare, reported: bool) -> None:
    reader = await declare(ack_wait=30.0)
    await publish(reader.executor, "a")
    await reader.lease("ann")
    at_work = ConsumerAtWork(stream="orders", name="ship", owner=str(owner("ann")))
    consumers = [at_work] if reported else []
    facts = WorkerFacts(host="mill", pid=7, kind="run", version="1", started_at=reader.clock.now, consumers=consumers)
    await store.record_heartbeat(reader.executor, uuid4(), facts)
    reader.clock.advance(31)
    await reader.lease("bob", limit=0)
    found = await _peeked(reader)
    assert (found.state, found.error_type, found.failed_by) == (
        "parked",
        "LeaseExpired",
        "mill:7" if reported else None,
    )
    assert found.failed_at == reader.clock.now


async def test_a_message_that_was_not_tried_takes_no_room_for_an_error(declare: Declare) -> None:
    """With a ninth column each parked row would have eight bytes more."""
    reader = await declare()
    await publish(reader.executor, "a", "b")
    await reader.release(await reader.lease())
    sizes = await reader.executor.fetch("select pg_column_size(p.*) as parked, pg_column_size(o.*) as before"
        " from headrace_internal.parked as p cross join lateral (select p.consumer_id, p.seq, p.key_hash, p.attempts, p.crashes, p.due_at, p.delay) as o")  # fmt: skip
    assert [row["parked"] for row in sizes] == [row["before"] for row in sizes]


async def test_a_role_that_may_not_read_messages_sees_no_error_of_them(login: Login, declare: Declare) -> None:
    reader = await declare()
    await publish(reader.executor, "a")
    await _fail(reader, await reader.lease())
    query = "select error, error_type, failed_by, failed_at is not null from headrace.parked where stream = 'orders'"
    whole = [("NoStock: 3 of 4", "shop.NoStock", "mill:7", True)]
    assert [tuple(row) for row in await reader.executor.fetch(query)] == whole
    assert [tuple(row) for row in await (await login("consume")).fetch(query)] == whole
    assert [tuple(row) for row in await (await login("observe")).fetch(query)] == [(None, None, None, False)]


async def test_a_role_that_may_not_read_messages_sees_no_failure_that_opened_a_breaker(
    login: Login, database: store.Database
) -> None:
    at_work = ConsumerAtWork(stream="orders", name="ship", breaker="open", breaker_reason="NoStock: 3 of 4")
    started_at = datetime.now(UTC)
    facts = WorkerFacts(host="mill", pid=7, kind="run", version="1", started_at=started_at, consumers=[at_work])
    await store.record_heartbeat(database, uuid4(), facts)
    for privilege, reason in (("observe", None), ("consume", "NoStock: 3 of 4")):
        _, [worker] = await store.workers(await login(privilege, streams=()))
        assert [(one.breaker, one.breaker_reason) for one in worker.consumers] == [("open", reason)]
