"""Check-ins of owners: holds in the place of lost leases, and what waits for them in a young history."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from headrace import store
from headrace.model.errors import UnknownConsumer
from headrace.model.outcomes import Settlement
from tests.conftest import Declare
from tests.support.readers import Reader, owner, publish

pytestmark = pytest.mark.asyncio


def of(reader: Reader, name: str = "ann", *, called: str = "ship") -> store.Owner:
    return store.Owner(reader.id, owner(name), "orders", called)


async def check_in(
    reader: Reader, *messages: tuple[int, int, str], name: str = "ann", before: UUID | None = None,
    known: list[int] | None = None,
) -> store.CheckIn:  # fmt: skip
    return await store.check_in(reader.executor, of(reader, name), messages, known, before=before, now=reader.clock.now)


async def lose_leases(database: store.Database) -> None:
    """As after a crash: the leases are lost, and the history is another one."""
    await database.fetch("delete from headrace_internal.leases")
    await database.fetch("delete from headrace_internal.history")
    await database.fetch("update headrace_internal.cursors set position = 0")


async def test_a_hold_keeps_the_keys_of_a_lost_lease_until_their_messages_are_done(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, "a", "b", "c")
    batch = await reader.lease("ann", 2)
    assert batch.lease_id is not None
    await lose_leases(database)
    answer = await check_in(reader, (batch.lease_id, 1, "a"), (batch.lease_id, 2, "b"))
    (hold,) = answer.leases
    assert (answer.leases, answer.holds) == ({hold: {}}, {batch.lease_id: hold})
    assert (await reader.lease("bob")).seqs == [3]
    ended = Settlement(leases=[hold], seqs=[-1], failures=[None])
    assert await store.settle(database, reader.id, ended, history=answer.history) == []
    assert (await reader.lease("bob")).seqs == [1]
    assert await store.settle(database, reader.id, Settlement(whole=[hold]), history=answer.history) == []
    assert (await reader.lease("bob")).seqs == [2]


@pytest.mark.parametrize("ends", ["expires", "is released"])
async def test_a_hold_that_ends_puts_nothing_back(database: store.Database, declare: Declare, ends: str) -> None:
    reader = await declare(ack_wait=30)
    await publish(database, "a")
    batch = await reader.lease("ann")
    assert batch.lease_id is not None
    await lose_leases(database)
    await check_in(reader, (batch.lease_id, 1, "a"))
    if ends == "expires":
        reader.clock.advance(30)
    else:
        assert await store.reclaim(database, reader.id, owner("ann"), []) == 0
    again = await reader.lease("bob")
    assert (again.seqs, again.attempts) == ([1], None)
    assert await reader.count("parked") == 0


async def test_a_hold_that_a_second_crash_has_lost_becomes_another_one(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, "a")
    batch = await reader.lease("ann")
    assert batch.lease_id is not None
    await lose_leases(database)
    (first,) = (await check_in(reader, (batch.lease_id, 1, "a"))).leases
    await lose_leases(database)
    answer = await check_in(reader, (first, 1, "a"))
    assert answer.holds.keys() == {first}
    assert (await reader.lease("bob")).seqs == []


async def test_in_a_young_history_nothing_is_leased_until_all_owners_have_checked_in(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    before = {name: (await check_in(reader, name=name)).history for name in ("ann", "bob")}
    await publish(database, "a")
    await database.fetch("delete from headrace_internal.history")
    await check_in(reader, before=before["ann"])
    waits = await reader.lease("ann")
    assert (waits.seqs, waits.busy) == ([], True)
    assert waits.history not in (None, before["ann"])
    await check_in(reader, name="bob", before=before["bob"])
    assert (await reader.lease("ann")).seqs == [1]


async def test_an_owner_that_has_ended_or_a_history_that_is_older_is_not_waited_for(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    for name in ("ann", "bob"):
        await check_in(reader, name=name)
    await publish(database, "a", "b")
    await store.check_out(database, of(reader, "bob"))
    await database.fetch("update headrace_internal.history set since = clock_timestamp() - interval '1 minute'")
    await database.fetch("update headrace_internal.owners set history = gen_random_uuid()")
    # A history is not older than its server.
    await database.fetchval("select pg_sleep_until(pg_postmaster_start_time() + interval '2.5 seconds')")
    assert (await reader.lease("ann", 1)).seqs == [1]


async def test_an_owner_that_the_store_does_not_know_shows_that_others_may_be_missing(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    history = (await check_in(reader)).history
    await publish(database, "a")
    await database.fetch("delete from headrace_internal.owners")
    await database.fetch("delete from headrace_internal.history")
    await check_in(reader, before=history)
    assert (await reader.lease("ann")).busy, "the whole time is waited for"
    await database.fetch("delete from headrace_internal.history")
    await check_in(reader, before=(await check_in(reader)).history)
    assert not (await reader.lease("ann")).busy, "and only in that history"


async def test_owners_that_no_process_reports_are_forgotten(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    for name in ("ann", "bob"):
        await check_in(reader, name=name)
    later = timedelta(minutes=2)
    facts = f'{{"consumers": [{{"owner": "{owner("ann")}"}}, {{}}], "more_consumers": 0}}'
    now = await database.fetchval("select clock_timestamp()")
    await database.fetchval("select headrace_internal.record_heartbeat($1, $2, $3)", uuid4(), facts, now + later)
    await store.forget_workers(database, now=now + later)
    owners = await database.fetch("select owner from headrace_internal.owners")
    assert [row["owner"] for row in owners] == [owner("ann")]


async def test_an_owner_is_idle_if_it_has_checked_in_and_holds_no_message(
    database: store.Database, declare: Declare
) -> None:
    reader, other = await declare(), await declare("bill")
    await publish(database, "a", "b")

    async def others_are_idle(name: str) -> bool:
        return await store.has_idle_owner(database, reader.id, owner(name))

    await check_in(reader)
    await store.check_in(database, of(other, "cleo", called="bill"), [])
    assert not await others_are_idle("ann"), "ann is no other, and cleo is one of another consumer"
    await check_in(reader, name="bob")
    assert await others_are_idle("ann")
    await reader.lease("bob", 1)
    assert not await others_are_idle("ann")
    assert await others_are_idle("bob")
    await reader.lease("ann", 1)
    assert not await others_are_idle("bob")
    repeats = "update headrace_internal.leases set owner = headrace_internal.repeating_owner(owner) where owner = $1"
    await database.fetch(repeats, owner("ann"))
    assert not await others_are_idle("bob"), "ann's message will be delivered again after one that is replayed"
    await store.check_out(database, of(reader, "ann"))
    assert not await others_are_idle("bob")


async def test_an_owner_whose_circuit_breaker_is_open_is_not_idle(database: store.Database, declare: Declare) -> None:
    reader, process = await declare(), uuid4()
    await check_in(reader, name="bob")

    async def is_idle(state: str) -> bool:
        facts = f'{{"consumers": [{{"owner": "{owner("bob")}", "breaker": "{state}"}}, {{"breaker": "open"}}]}}'
        await database.fetchval("select headrace_internal.record_heartbeat($1, $2)", process, facts)
        return await store.has_idle_owner(database, reader.id, owner("ann"))

    assert [await is_idle(state) for state in ("closed", "open", "half-open")] == [True, False, True]


async def test_the_number_of_another_consumer_is_refused(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    with pytest.raises(UnknownConsumer, match="bill"):
        await store.check_in(database, of(reader, called="bill"), [])


async def test_a_rewritten_history_keeps_its_identity_and_that_of_release_0_1(database: store.Database) -> None:
    identity = "select headrace_internal.timeline_identity(id, xmin) from headrace_internal.history"
    of_release_0_1 = """select md5(concat_ws('/', id, xmin, pg_relation_filepath('headrace_internal.history')))::uuid
                        from headrace_internal.history"""
    before = await database.fetchval(identity)
    assert before == await database.fetchval(of_release_0_1)
    await database.fetch("vacuum full headrace_internal.history")
    await database.fetch("vacuum freeze headrace_internal.history")
    assert await database.fetchval(identity) == before
    assert await database.fetchval(of_release_0_1) != before
