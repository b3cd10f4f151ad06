"""Leader election: one process leads, and it notifies the consumers that missed a notification."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from headrace import store
from tests.conftest import Connect, Declare
from tests.support import notifications
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio

ANN, BOB = uuid4(), uuid4()
TERM = 4.0
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SOON = 20.0


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


async def test_the_first_process_leads_and_renews_after_half_its_term(database: store.Database) -> None:
    assert await store.lead(database, ANN, TERM, now=at(0)) == (True, TERM / 2)
    assert await store.lead(database, BOB, TERM, now=at(1)) == (False, 3.0)
    assert await store.lead(database, ANN, TERM, now=at(2)) == (True, TERM / 2)
    assert await store.lead(database, BOB, TERM, now=at(5)) == (False, 1.0)


async def test_when_the_leader_has_died_another_takes_over_at_the_end_of_its_term(database: store.Database) -> None:
    await store.lead(database, ANN, TERM, now=at(0))
    assert (await store.lead(database, BOB, TERM, now=at(3.9)))[0] is False
    assert (await store.lead(database, BOB, TERM, now=at(4)))[0] is True
    assert (await store.lead(database, ANN, TERM, now=at(5)))[0] is False  # it was only frozen


async def test_when_the_leader_resigns_another_takes_over_at_once(database: store.Database) -> None:
    await store.lead(database, ANN, TERM, now=at(0))
    await store.resign(database, ANN)
    assert (await store.lead(database, BOB, TERM, now=at(0.1)))[0] is True
    await store.resign(database, ANN)  # too late, the other one leads
    assert (await store.lead(database, ANN, TERM, now=at(0.2)))[0] is False


async def test_a_clock_that_is_set_back_leaves_no_gap_in_leadership(database: store.Database) -> None:
    await store.lead(database, ANN, TERM, now=at(3600))
    assert (await store.lead(database, BOB, TERM, now=at(0)))[0] is True


async def test_of_many_processes_at_once_one_leads(database: store.Database) -> None:
    owners = [uuid4() for _ in range(16)]
    taken = await asyncio.gather(*(store.lead(database, owner, TERM, now=at(0)) for owner in owners))
    assert sum(leads for leads, _ in taken) == 1


async def test_leadership_keeps_one_row_however_often_it_is_renewed(database: store.Database, connect: Connect) -> None:
    for second in range(50):
        await store.lead(database, ANN, TERM, now=at(second))
    assert await database.fetchval("select count(*) from headrace_internal.leaders") == 1


# --- missed notifications


@pytest.fixture
def heard() -> asyncio.Event:
    return asyncio.Event()


@pytest.mark.parametrize("what", ["fresh", "parked", "expired"])
async def test_a_consumer_that_missed_its_notification_is_notified(
    database: store.Database, declare: Declare, connect: Connect, heard: asyncio.Event, what: str
) -> None:
    """As when the process that was notified has died, or a notification arrived before another
    message was visible."""
    reader = await declare(ack_wait=1)
    reader.clock.now = datetime.now(UTC) - timedelta(minutes=1)
    await publish(database, "a")
    if what != "fresh":
        batch = await reader.lease()
        if what == "parked":
            await reader.nack(batch, delay=10)
    await store.wait(database, reader.id, 60)
    listener = await connect()
    await notifications.listen(listener, lambda *_: heard.set())
    assert await store.notify_waiting(database) == (None, 1)
    async with asyncio.timeout(SOON):
        await heard.wait()


@pytest.mark.parametrize("what", ["nothing", "nobody waits", "rolled back", "paused"])
async def test_a_consumer_with_nothing_to_lease_is_not_notified(
    database: store.Database, declare: Declare, connect: Connect, what: str
) -> None:
    reader = await declare()
    if what == "rolled back":
        connection = await connect()
        transaction = connection.transaction()
        await transaction.start()
        await publish(connection, "a")
        await transaction.rollback()
    elif what != "nothing":
        await publish(database, "a")
    if what == "paused":
        await store.pause(database, reader.id)
    if what != "nobody waits":
        await store.wait(database, reader.id, 60)
    assert await store.notify_waiting(database) == (None, 0)


async def test_each_call_continues_where_the_last_one_ended(database: store.Database, declare: Declare) -> None:
    readers = [await declare(name=f"ship-{number}") for number in range(5)]
    await publish(database, "a")
    await store.wait(database, [reader.id for reader in readers], 60)
    reached, notified, calls = 0, 0, 0
    while reached is not None:
        reached, found = await store.notify_waiting(database, reached, 2)
        notified, calls = notified + found, calls + 1
    assert (notified, calls) == (5, 3)
