"""Erasing single messages: nothing of their contents is left in the database, and everything else continues."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from headrace import store
from headrace.model.errors import NotGranted
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.outcomes import Failure, Settlement
from headrace.model.specs import ConsumerSpec, StreamSpec
from tests.conftest import Connect, Declare
from tests.support.readers import Clock, Reader, begun, publish
from tests.support.roles import Login
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio

SECRET = "ann-secret"
"""In the key, the data, the headers, the message id and the errors of what is erased."""


REJECT = Failure("reject", None, "no use")


async def leaks(database: store.Database) -> list[str]:
    """The tables of all schemas in which the secret occurs."""
    tables = await database.fetch("""
        select c.oid::regclass::text as name from pg_class as c
        where c.relkind = 'r' and c.relnamespace::regnamespace::text in ('headrace_internal', 'headrace_streams', 'headrace_staging')""")
    return [
        row["name"]
        for row in tables
        if await database.fetchval(f"select exists (select from {row['name']} as t where t::text like '%{SECRET}%')")
    ]


async def put_secret(database: store.Database, message_id: str | None = None) -> None:
    text = json.dumps({"name": SECRET})
    await store.publish(database, "orders", f"a.{SECRET}", text, text, options=PublishOptions(message_id=message_id))


async def test_no_table_has_anything_of_an_erased_message(database: store.Database, declare: Declare) -> None:
    ship, bill, late = await declare("ship"), await declare("bill"), await declare("late")
    await put_secret(database, f"order-{SECRET}")
    await publish(database, "a", "b")
    await ship.reject(await ship.lease(limit=1), error=f"no such {SECRET}")
    await bill.nack(await bill.lease(limit=1), delay=60, error=SECRET)
    assert await leaks(database)
    assert await store.erase(database, "orders", [1], by="ops", reason="asked for") == [1]
    assert await leaks(database) == []
    (erasure,) = await store.erasures(database, "orders")
    assert (erasure.seq, erasure.erased_by, erasure.reason) == (1, "ops", "asked for")
    assert await ship.dead_letters() == []
    for reader in (ship, bill, late):
        assert await reader.drain() == [2, 3]
        assert (await reader.info()).missed == 0


async def test_the_unique_key_of_an_erased_message_is_free(database: store.Database, declare: Declare) -> None:
    await declare()
    assert await store.publish(database, "orders", "a", "1", options=PublishOptions(unique_key=SECRET)) == 1
    assert await leaks(database)
    await store.erase(database, "orders", [1])
    assert await leaks(database) == []
    assert await store.publish(database, "orders", "a", "1", options=PublishOptions(unique_key=SECRET)) == 2


async def test_the_key_of_an_erased_message_goes_on(database: store.Database, declare: Declare, clock: Clock) -> None:
    blocked = await declare("blocked", max_deliver=1, on_exhausted="block")
    parked = await declare("parked")
    await publish(database, *"aaab")
    await blocked.nack(await blocked.lease(limit=1))
    await parked.nack(await parked.lease(limit=1), delay=3600)
    assert await blocked.drain() == await parked.drain() == [4]
    assert await store.erase(database, "orders", [1, 2]) == [1, 2]
    assert await blocked.drain() == await parked.drain() == [3]
    assert [await reader.count(table) for reader in (blocked, parked) for table in ("parked", "tails")] == [0] * 4


async def test_a_handler_that_has_the_message_in_hand_settles_it(database: store.Database, declare: Declare) -> None:
    acks, fails, dies = await declare("acks"), await declare("fails"), await declare("dies", max_deliver=1)
    await publish(database, *"aa")
    in_hand, failing, dying = [await reader.lease(limit=1) for reader in (acks, fails, dies)]
    await store.erase(database, "orders", [1])
    assert await acks.ack_all(in_hand) == []
    assert await fails.nack(failing, delay=3600) == []
    assert await dies.nack(dying, error="boom") == []
    for reader in (acks, fails, dies):
        assert await reader.drain() == [2], "its key goes on at once"
        info = await reader.info()
        assert (info.dead_letters, info.parked, info.missed) == (0, 0, 0)


async def test_an_erased_message_is_not_replayed(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await publish(database, *"abc")
    assert await reader.drain() == [1, 2, 3]
    assert await store.replay(database, reader.id, store.Selection()) == 3
    await store.erase(database, "orders", [2])
    assert await reader.drain() == [1, 3]
    await reader.seek(0)
    assert await reader.drain() == [1, 3]


async def test_what_is_not_there_is_left_out_and_erasing_again_changes_nothing(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    await publish(database, "a")
    assert await store.erase(database, "orders", [1, 7]) == [1]
    (first,) = await store.erasures(database, "orders")
    assert await store.erase(database, "orders", [1, 7], reason="again") == []
    assert await store.erasures(database, "orders") == [first]
    assert first.erased_by == await database.fetchval("select session_user::text")


async def test_a_dead_letter_of_a_message_that_retention_removed_is_erased_too(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await put_secret(database)
    await reader.reject(await reader.lease(), error=SECRET)
    await database.fetch("delete from headrace_streams.orders")
    assert await store.erase(database, "orders", [1]) == [1]
    assert await leaks(database) == []


async def test_a_second_call_finishes_what_a_crash_has_left(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1, on_exhausted="block")
    await put_secret(database)
    await store.publish(database, "orders", f"a.{SECRET}", "2")
    await reader.nack(await reader.lease(limit=1), error=SECRET)
    await database.fetch("select headrace_internal.erase_messages('orders', '{1}', null, null)")
    (shell,) = await reader.dead_letters()
    assert (shell.key, shell.data, shell.headers, shell.error) == ("erased", None, None, None)
    assert await reader.drain() == []
    assert await store.erase(database, "orders", [1]) == []
    assert await reader.drain() == [2]


async def test_no_copy_is_made_of_a_message_that_is_being_erased(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await put_secret(database)
    batch = await reader.lease()
    async with begun(connect) as (erasing, transaction):
        await erasing.fetch("select * from headrace_internal.erase_messages('orders', '{1}', null, null)")
        rejecting = await start(reader.reject(batch, error="no"))
        await until_blocked(database, erasing)
        await transaction.commit()
        await rejecting
    assert await reader.dead_letters() == []
    assert await leaks(database) == []


async def test_with_one_message_per_key_the_key_can_be_published_again(
    database: store.Database, declare: Declare, clock: Clock
) -> None:
    await store.create_stream(database, StreamSpec(name="latest", one_message_per_key=True, dedupe=True))
    spec = ConsumerSpec(stream="latest", name="ship")
    reader = Reader(database, spec, (await store.declare_consumer(database, spec)).id, clock)
    await store.publish(database, "latest", SECRET, "1")
    assert await store.erase(database, "latest", [1]) == [1]
    assert await leaks(database) == []
    await store.publish(database, "latest", SECRET, "1")
    assert await reader.drain() == [2]


async def test_a_role_erases_only_with_the_grant_admin(database: store.Database, login: Login) -> None:
    await publish(database, *"ab")
    consumer, operator = await login("publish", "consume"), await login("admin")
    number = await database.fetchval("select id from headrace_internal.consumers where name = 'ship'")
    await store.settle(
        database,
        number,
        Settlement([], [(await store.lease(database, number, uuid4(), 1)).lease_id or 0], [1], [REJECT]),
    )
    for refused in (
        store.erase(consumer, "orders", [1]),
        store.erasures(consumer, "orders"),
        store.erase(operator, "secrets", [1]),
    ):
        with pytest.raises(NotGranted):
            await refused
    assert await store.erase(operator, "orders", [1]) == [1]
    (erasure,) = await store.erasures(operator, "orders")
    assert erasure.erased_by.startswith("app_")
    assert await store.dead_letters(database, number) == []


async def test_an_erased_seq_is_never_given_again(database: store.Database, declare: Declare) -> None:
    """Also after the data alone was restored. A message with the seq would be lost at its first failure."""
    reader = await declare()
    await publish(database, *"ab")
    await store.erase(database, "orders", [2])
    await database.fetch("update headrace_internal.streams set drawn = 0")
    sequence = await database.fetchval("select sequence from headrace_internal.streams")
    await database.fetch(f"select setval('{sequence}', 1)")
    await database.fetch("select headrace.mend_sequences()")
    await publish(database, "c")
    assert await reader.drain() == [1, 3]


async def test_a_lease_call_in_the_middle_of_an_erasure_misses_nothing(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    await publish(database, *"ab")
    await reader.release(await reader.lease())
    await database.fetch("select headrace_internal.erase_messages('orders', '{1}', null, null)")
    assert await reader.drain() == [2]
    assert (await reader.info()).missed == 0


async def test_an_erasure_that_waits_for_a_publisher_keeps_no_consumer_waiting(
    database: store.Database, declare: Declare, connect: Connect, clock: Clock
) -> None:
    await store.create_stream(database, StreamSpec(name="latest", one_message_per_key=True))
    spec = ConsumerSpec(stream="latest", name="ship")
    reader = Reader(database, spec, (await store.declare_consumer(database, spec)).id, clock)
    await publish(database, *"ab", stream="latest")
    batch = await reader.lease()
    async with begun(connect) as (publisher, transaction):
        await publish(publisher, "a", stream="latest")
        erasing = await start(store.erase(database, "latest", [1, 2]))
        await until_blocked(database, publisher)
        async with asyncio.timeout(60):
            await reader.reject(batch, 1)
        await transaction.rollback()
    assert await erasing == [1, 2]
    assert await reader.dead_letters() == []


async def test_an_erasure_and_a_publisher_with_a_message_id_take_turns(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Both lock the row of the id before that of the key."""
    await store.create_stream(database, StreamSpec(name="latest", one_message_per_key=True, dedupe_window=1.0))
    await store.publish(database, "latest", "a", "1", options=PublishOptions(message_id="x"))
    await database.fetch("update headrace_internal.message_ids set published_at = published_at - interval '1 hour'")
    async with begun(connect) as (publisher, transaction):
        await store.publish(publisher, "latest", "b", "1", options=PublishOptions(message_id="x"))
        erasing = await start(store.erase(database, "latest", [1]))
        await until_blocked(database, publisher)
        async with asyncio.timeout(60):
            await store.publish(publisher, "latest", "a", "2")
        await transaction.commit()
    assert await erasing == []


async def test_an_erasure_waits_for_a_settle_that_parks_the_message(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    reader = await declare()
    await publish(database, *"aa")
    batch = await reader.lease(limit=1)
    async with begun(connect) as (settling, transaction):
        await Reader(settling, reader.spec, reader.id, reader.clock).nack(batch, delay=3600)
        erasing = await start(store.erase(database, "orders", [1]))
        await until_blocked(database, settling)
        await transaction.commit()
    assert await erasing == [1]
    assert await reader.drain() == [2], "its key does not wait for the retry"
