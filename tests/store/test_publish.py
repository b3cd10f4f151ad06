"""Publish: append messages inside the caller's own transaction."""

from __future__ import annotations

from contextlib import suppress

import asyncpg
import pytest

from headrace import store
from headrace.model.errors import InvalidData, InvalidInput, InvalidKey, UnknownStream
from headrace.model.specs import ConsumerSpec
from headrace.store.database.direct_statements import LARGE
from headrace.store.database.listener import channels
from tests.conftest import Declare
from tests.support import servers
from tests.support.readers import publish

pytestmark = pytest.mark.asyncio


async def test_a_message_comes_out_as_it_went_in(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    data = '{"b" : 1,   "a": "ü\\n", "b": 2.50}'
    seq = await store.publish(database, "orders", "orders.us.42", data, '{"trace": "abc"}')
    batch = await reader.lease()
    assert (batch.seqs, batch.keys, batch.data) == ([seq], ["orders.us.42"], [data])
    assert batch.headers == ['{"trace": "abc"}']
    assert batch.attempts is None
    assert batch.created_at[0].tzinfo is not None


async def test_seqs_rise_in_the_order_in_which_messages_are_given(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_ack_pending=5_000)
    keys = [f"k.{n % 7}" for n in range(2_500)]  # more than one chunk
    await publish(database, *keys)
    batch = await reader.lease(limit=5_000, look=5_000)
    assert batch.keys == keys
    assert batch.seqs == sorted(batch.seqs)


async def test_a_published_message_is_there_once_the_users_transaction_commits(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    async with database.transaction() as connection:
        await store.publish(connection, "orders", "a", "1")
        await store.publish_many(connection, "orders", ["b", "c"], ["2", "3"], [None, '{"x": 1}'])
        assert (await reader.lease()).seqs == []
    assert (await reader.lease()).data == ["1", "2", "3"]


async def test_a_rolled_back_transaction_publishes_nothing(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    with suppress(ZeroDivisionError):
        async with database.transaction() as connection:
            await store.publish(connection, "orders", "a", "1")
            raise ZeroDivisionError
    await store.publish(database, "orders", "b", "2")
    assert (await reader.lease()).keys == ["b"]


async def test_a_rolled_back_savepoint_publishes_nothing_and_the_rest_stays(
    database: store.Database, declare: Declare
) -> None:
    reader = await declare()
    async with database.transaction() as connection:
        await store.publish(connection, "orders", "a", "1")
        with suppress(ZeroDivisionError):
            async with connection.transaction():
                await store.publish(connection, "orders", "b", "2")
                raise ZeroDivisionError
        await store.publish(connection, "orders", "c", "3")
    assert await reader.drain() == [1, 3]


async def test_plain_sql_can_publish(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await database.fetchval("""select headrace.publish('orders', 'a', '{"total": 12}')""")
    await database.fetch("insert into headrace_streams.orders (key, data) select 'b', '1' from generate_series(1, 3)")
    assert (await reader.lease()).keys == ["a", "b", "b", "b"]


async def test_an_unknown_stream_is_named(database: store.Database) -> None:
    with pytest.raises(UnknownStream, match="no stream 'nowhere'"):
        await store.publish(database, "nowhere", "a", "1")
    with pytest.raises(UnknownStream, match="no stream 'nowhere'"):
        await store.publish_many(database, "nowhere", ["a"], ["1"])


_BAD_KEYS: list[str] = ["", ".", "a.", ".a", "a..b", "*", ">", "a.*", "a.>.b", "k" * 1025, "ü" * 513]


async def test_the_database_refuses_a_bad_key_too(database: store.Database, declare: Declare) -> None:
    await declare()
    for key in _BAD_KEYS:
        with pytest.raises(InvalidKey, match="The key is invalid"):
            await store.publish(database, "orders", key, "1")


_OTHER_KEYS: list[str] = ["a", "a*", ">b.c", "a.**", "*>", "k" * 1024, "ü" * 512, "a\u200b.%0A", "a.*-", "'\"\\%$1"]


async def test_the_database_takes_any_other_key(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    for key in _OTHER_KEYS:
        await store.publish(database, "orders", key, "1")
        assert (await reader.lease()).keys == [key]


_NO_JSON: list[str] = ["", "{", "nothing", "{'a': 1}", "NaN", "1 2", '"\0"']


async def test_data_that_is_not_json_is_refused_in_a_sentence(database: store.Database, declare: Declare) -> None:
    await declare()
    for data in _NO_JSON:
        with pytest.raises(InvalidData, match="NUL" if "\0" in data else "not JSON"):
            await store.publish(database, "orders", "a", data)


_NULS: list[str] = [r'"\u0000"', r'{"a": ["x\\\u0000"]}', r'{"\u0000": 1}']


async def test_a_nul_in_a_string_is_refused_by_the_database_too(database: store.Database, declare: Declare) -> None:
    await declare()
    for data in _NULS:
        with pytest.raises(InvalidData, match="NUL"):
            await store.publish(database, "orders", "a", data)


async def test_data_that_is_nested_too_deeply_is_refused_in_a_sentence(
    database: store.Database, declare: Declare
) -> None:
    await declare()
    with pytest.raises(InvalidData, match="nested too deeply"):
        await store.publish(database, "orders", "a", "[" * 100_000 + "]" * 100_000)


async def test_an_escaped_backslash_before_u0000_is_no_nul(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    await store.publish(database, "orders", "a", r'"\\u0000 \\\\u0000"')
    assert (await reader.lease()).data == [r'"\\u0000 \\\\u0000"']


_NO_OBJECTS: list[str] = ["[]", "1", "null", '"x"']


async def test_headers_that_are_no_object_are_refused(database: store.Database, declare: Declare) -> None:
    await declare()
    for headers in _NO_OBJECTS:
        with pytest.raises(InvalidData, match="Headers must be a JSON object"):
            await store.publish(database, "orders", "a", "1", headers)


async def test_one_bad_message_keeps_its_whole_chunk_out(database: store.Database, declare: Declare) -> None:
    reader = await declare()
    with pytest.raises(InvalidKey):
        await store.publish_many(database, "orders", ["a", "b..c"], ["1", "2"])
    assert await reader.drain() == []


_BAD_NAMES: list[str] = ["", "Orders", "a b", "a.b", "-a", "_a", "x" * 49, 'a"b']


async def test_a_stream_name_that_cannot_be_is_refused(database: store.Database) -> None:
    for name in _BAD_NAMES:
        with pytest.raises(InvalidInput, match="1 to 48 lower-case letters"):
            await store.create_stream(database, name)


@pytest.mark.parametrize("name", ["a", "x" * 48, "9-lives_", "select"])
async def test_a_stream_is_created_once(database: store.Database, name: str) -> None:
    assert await store.create_stream(database, name) == await store.create_stream(database, name)
    await store.publish(database, name, "a", "1")
    assert [stream.name for stream in await store.streams(database)] == [name]


async def test_stream_info_shows_its_messages_and_size(database: store.Database, declare: Declare) -> None:
    await declare()
    await publish(database, "a", "b", "c")
    info = await store.stream(database, "orders")
    assert (info.messages, info.first_seq, info.last_seq, info.consumers) == (3, 1, 3, 1)
    with pytest.raises(UnknownStream):
        await store.stream(database, "nowhere")


@pytest.mark.long
async def test_a_message_too_large_for_a_lease_call_is_refused(database: store.Database) -> None:
    await store.create_stream(database, "orders")
    text = "select headrace.publish('orders', 'a', to_json(repeat('x', $1::int)))"
    with pytest.raises(InvalidData, match="at most 200 MB"):
        await database.fetchval(text, 200_000_000)
    await database.fetchval(text, 1_000_000)
    assert await database.fetchval("select count(*) from headrace_streams.orders") == 1


@pytest.mark.parametrize("again", [False, True])
async def test_the_bytes_of_a_batch_are_those_of_the_payloads_and_not_those_on_disk(
    database: store.Database, declare: Declare, again: bool
) -> None:
    """Compressed a hundredfold, together they are larger than a lease call can return, and would
    never be delivered."""
    reader = await declare()
    for relation in await database.fetch("select relation from headrace_internal.segments"):
        await database.fetch(f"alter table {relation[0]} alter column data set storage extended")
    await store.publish_many(database, "orders", [f"k.{n}" for n in range(20)], [f'"{"x" * 100_000}"'] * 20)
    if again:
        await reader.release(await reader.lease())
    batch = await reader.lease(max_bytes=300_000)
    assert len(batch.seqs) == 3
    assert batch.more
    await reader.ack_all(batch)
    assert len(await reader.drain(max_bytes=300_000)) == 17


@pytest.mark.parametrize("size", [LARGE // 2, LARGE, 20 * LARGE])
async def test_small_and_large_data_are_stored_and_refused_alike(database: store.Database, size: int) -> None:
    """From the third publish on, the function of the stream is called, and large data is sent in another way."""
    await store.create_stream(database, "orders")
    texts = [f'{{"n": {n}, "text": "{"ä" * size}"}}' for n in range(5)]
    for _ in range(4):
        assert await store.publish_many(database, "orders", ["k"] * 5, texts, [None, *['{"h": 1}'] * 4]) == 5
    stored = await database.fetch("select data, headers from headrace_streams.orders order by seq")
    assert [tuple(row) for row in stored] == [(text, '{"h": 1}' if n else None) for n, text in enumerate(texts)] * 4
    for text in ("{" + "x" * size, f'"{"x" * size}\\u0000"', f'"{"x" * size}\0"'):
        with pytest.raises(InvalidData):
            await store.publish_many(database, "orders", ["k"], [text])
    assert await database.fetchval("select count(*) from headrace_streams.orders") == 20


async def test_warming_up_publishes_nothing_and_notifies_nobody(database: store.Database, dsn: str) -> None:
    stream = await store.create_stream(database, "orders")
    reader = await store.declare_consumer(database, ConsumerSpec(stream="orders", name="ship"))
    await store.wait(database, reader.id, 60.0)
    listener = await asyncpg.connect(dsn)
    heard: list[str] = []
    await listener.add_listener(channels([stream])[0], lambda *told: heard.append(told[-1]))
    await store.warm_up(database)
    await database.fetchval("select pg_notify($1, 'the end')", channels([stream])[0])
    while "the end" not in heard:
        await listener.fetchval("select 1")
    assert heard == ["the end"]
    assert await store.publish(database, "orders", "a", "1") == 1
    await listener.close()


@pytest.mark.parametrize("problem", ["no stream", "full", "read-only"])
async def test_warming_up_does_without_a_stream_to_publish_to(dsn: str, problem: str) -> None:
    setting = "options=-c%20default_transaction_read_only%3Don" if problem == "read-only" else ""
    async with servers.opened(dsn) as database:
        if problem != "no stream":
            await store.create_stream(database, "orders")
        if problem == "full":
            await database.fetch("update headrace_internal.streams set full_until = 'infinity'")
    async with servers.opened(f"{dsn}{'&' if '?' in dsn else '?'}{setting}") as database:
        await store.warm_up(database)
        assert await database.fetchval("select 1") == 1
