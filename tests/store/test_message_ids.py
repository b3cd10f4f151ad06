"""Message ids and scheduled messages: a second message with the same id is not stored, and a
scheduled message waits for its time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from headrace import store
from headrace.model.errors import InvalidInput
from headrace.model.messages.publish_options import PLAIN, PublishOptions
from headrace.model.specs import StreamSpec
from tests.conftest import Connect, Declare
from tests.support.readers import begun
from tests.support.waiting import start, until_blocked

pytestmark = pytest.mark.asyncio


async def count(database: store.Database, stream: str = "orders") -> int:
    found: int = await database.fetchval(f'select count(*) from headrace_streams."{stream}"')
    return found


async def test_the_same_id_is_published_once_and_its_seq_is_returned_again(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    first = await store.publish(database, "orders", "a", "1", options=PublishOptions(message_id="x"))
    again = await store.publish(database, "orders", "a", "2", options=PublishOptions(message_id="x"))
    other = await store.publish(database, "orders", "a", "3", options=PublishOptions(message_id="y"))
    assert (first, again, other, await count(database)) == (1, 1, 2, 2)


async def test_ids_belong_to_a_stream(database: store.Database, declare: Declare) -> None:
    await declare()
    await store.create_stream(database, "other")
    await store.publish(database, "orders", "a", "1", options=PublishOptions(message_id="x"))
    await store.publish(database, "other", "a", "1", options=PublishOptions(message_id="x"))
    assert (await count(database), await count(database, "other")) == (1, 1)


async def test_a_batch_leaves_out_known_and_repeated_ids(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await store.publish(database, "orders", "a", "0", options=PublishOptions(message_id="x"))
    published = await store.publish_many(
        database,
        "orders",
        list("abcde"),
        list("12345"),
        options=PublishOptions.of_many(len(list("12345")), message_ids=["x", "y", None, "y", "z"]),
    )
    assert published == 3
    assert (await reader.lease()).data == ["0", "2", "3", "5"]
    assert await store.publish(database, "orders", "b", "9", options=PublishOptions(message_id="z")) == 4


async def test_an_id_is_forgotten_after_the_window(database: store.Database, declare: Declare) -> None:
    await declare()
    await store.edit_stream(database, StreamSpec(name="orders", dedupe_window=0))
    await store.publish(database, "orders", "a", "1", options=PublishOptions(message_id="x"))
    assert await store.publish(database, "orders", "a", "2", options=PublishOptions(message_id="x")) == 2


async def test_an_edit_of_the_window_that_another_edit_waits_for_moves_ids_once(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    """Ids of signed webhooks are remembered for 10 minutes at least, whatever the window is."""
    await declare()
    await store.edit_stream(database, StreamSpec(name="orders", dedupe_window=60))
    options = PublishOptions(message_id="headrace:timed-webhook:1")
    await store.publish(database, "orders", "a", "1", options=options)
    read = "select published_at from headrace_internal.message_ids"
    before = await database.fetchval(read)
    async with begun(connect) as (other, transaction):
        await store.edit_stream(other, StreamSpec(name="orders", dedupe_window=0))
        edit = await start(
            database.fetchval("select headrace_internal.edit_stream('orders', $1)", '{"max_storage": 5000000}')
        )
        await until_blocked(database, other)
        await transaction.commit()
        await edit
    assert await database.fetchval(read) - before == timedelta(seconds=60)


async def test_an_id_of_a_publish_that_was_rolled_back_is_free(
    database: store.Database, declare: Declare, connect: Connect
) -> None:
    await declare()
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    await store.publish(other, "orders", "a", "1", options=PublishOptions(message_id="x"))
    waiting = await start(store.publish(database, "orders", "a", "2", options=PublishOptions(message_id="x")))
    await until_blocked(database, by=other)
    await transaction.rollback()
    assert await waiting == 2
    assert await count(database) == 1


async def test_two_publishers_of_one_id_publish_it_once(database: store.Database, declare: Declare) -> None:
    await declare()
    seqs = await asyncio.gather(
        *(store.publish(database, "orders", "a", "1", options=PublishOptions(message_id="x")) for _ in range(8))
    )
    assert (set(seqs), await count(database)) == ({1}, 1)


async def test_an_id_counts_in_a_compacted_stream_too(database: store.Database) -> None:
    await store.create_stream(database, StreamSpec(name="latest", one_message_per_key=True))
    assert await store.publish(database, "latest", "a", "1", options=PublishOptions(message_id="x")) == 1
    assert await store.publish(database, "latest", "a", "2", options=PublishOptions(message_id="x")) == 1
    assert await database.fetchval("select data::text from headrace_streams.latest") == "1"


@pytest.mark.parametrize("wrong", ["", "x" * 257, "é" * 129])
async def test_an_id_that_can_not_be_is_refused(database: store.Database, declare: Declare, wrong: str) -> None:
    await declare()
    with pytest.raises(InvalidInput, match="1 to 256 bytes"):
        await store.publish(database, "orders", "a", "1", options=PublishOptions(message_id=wrong))
    assert await count(database) == 0


async def test_a_message_for_later_is_not_in_the_stream_yet(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    later = datetime.now(UTC) + timedelta(hours=1)
    assert await store.publish(database, "orders", "a", "1", options=PublishOptions(deliver_at=later)) is None
    assert (await count(database), await reader.drain()) == (0, [])
    assert await database.fetchval("select count(*) from headrace_internal.scheduled") == 1


async def test_a_time_that_has_passed_is_now(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    past = datetime.now(UTC) - timedelta(hours=1)
    assert await store.publish(database, "orders", "a", "1", options=PublishOptions(deliver_at=past)) == 1
    assert (
        await store.publish_many(
            database, "orders", ["a", "b"], ["1", "2"], options=[PublishOptions(deliver_at=at) for at in [past, None]]
        )
        == 2
    )
    assert await reader.drain() == [1, 2, 3]


async def test_a_message_for_later_may_have_an_id(database: store.Database, declare: Declare) -> None:
    await declare()
    later = datetime.now(UTC) + timedelta(hours=1)
    for _ in range(2):
        assert (
            await store.publish(database, "orders", "a", "1", options=PublishOptions(message_id="x", deliver_at=later))
            is None
        )
    assert await database.fetchval("select count(*) from headrace_internal.scheduled") == 1


@pytest.mark.parametrize(
    ("key", "data", "headers"), [("a..b", "1", None), ("a.*", "1", None), ("a", '"\\u0000"', None), ("a", "1", "[]")]
)
async def test_a_message_that_could_never_be_published_is_not_scheduled(
    database: store.Database, declare: Declare, key: str, data: str, headers: str | None
) -> None:
    await declare()
    with pytest.raises(InvalidInput):
        await store.publish(
            database,
            "orders",
            key,
            data,
            headers,
            options=PublishOptions(deliver_at=datetime.now(UTC) + timedelta(hours=1)),
        )
    assert await database.fetchval("select count(*) from headrace_internal.scheduled") == 0


async def test_messages_of_a_call_may_have_ids_or_unique_keys_and_none_has_both(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    options = [PublishOptions(message_id="x"), PublishOptions(unique_key="x"), PLAIN, PublishOptions(unique_key="x")]
    for published in (3, 1):
        assert await store.publish_many(database, "orders", list("abcd"), list("1234"), options=options) == published
    both = "select headrace.publish_with_options('orders', '{a}', '{1}', null, '{\"message_id\": \"y\", \"unique_key\": \"y\"}')"
    with pytest.raises(InvalidInput, match="both a unique key and a message id"):
        await database.fetchval(both)
    assert await store.publish(database, "orders", "a", "1", options=PublishOptions(message_id="y")) is not None


async def test_options_in_sql_are_for_all_messages_or_for_each(database: store.Database, declare: Declare) -> None:
    await declare()
    call = "select * from headrace.publish_with_options('orders', '{a,b}', '{1,2}', null, $1::text::json)"
    for options, published in (
        ('{"deliver_at": "2999-01-01T00:00:00Z"}', 2),
        ('[{"message_id": "x"}, {"message_id": "x"}]', 1),
        ('[{"message_id": "x"}]', 1),  # the second message has none
        (None, 2),
    ):
        assert tuple((await database.fetch(call, options))[0]) == (published, None)
    assert await database.fetchval("select count(*) from headrace_internal.scheduled") == 2
    with pytest.raises(InvalidInput):  # more options than messages
        await database.fetch(call, '[{"message_id": "1"}, {"message_id": "2"}, {"message_id": "3"}]')
