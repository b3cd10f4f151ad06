"""Publishing through the app, and inside the caller's own transaction."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec
import pytest

from headrace import App, ConfigurationError, InvalidData, InvalidInput, InvalidKey, UnknownStream
from tests.runtime.running import Seen, running


async def stored(app: App) -> list[tuple[int, str, Any, Any]]:
    rows = await app.database.fetch("select seq, key, data, headers from headrace_streams.orders order by seq")
    return [(row[0], row[1], json.loads(row[2]), json.loads(row[3] or "null")) for row in rows]


@asynccontextmanager
async def own_connection(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


class Order(msgspec.Struct):
    id: int


@pytest.mark.asyncio
async def test_a_message_is_stored_with_its_key_data_and_headers_and_the_seq_is_returned(app: App) -> None:
    async with app:
        assert await app.publish("orders", "orders.us.1", {"a": [1, None, "héron"]}) == 1
        assert await app.publish("orders", "b", Order(7), headers={"trace": "x"}) == 2
        assert await app.publish("orders", "c", msgspec.Raw(b'{"n": 1.50}')) == 3
        assert await stored(app) == [
            (1, "orders.us.1", {"a": [1, None, "héron"]}, None),
            (2, "b", {"id": 7}, {"trace": "x"}),
            (3, "c", {"n": 1.5}, None),
        ]


@pytest.mark.asyncio
async def test_many_messages_are_stored_in_their_order_with_headers_where_there_are_any(app: App) -> None:
    async with app:
        assert await app.publish_many("orders", []) == 0
        assert await app.publish_many("orders", (pair for pair in [("a", 1), ("b", 2, {"h": 1}), ("a", 3, None)])) == 3
        assert await stored(app) == [(1, "a", 1, None), (2, "b", 2, {"h": 1}), (3, "a", 3, None)]


@pytest.mark.asyncio
async def test_many_messages_are_published_all_or_none_however_many(app: App) -> None:
    messages = [("a", number) for number in range(2500)]
    async with app:
        with pytest.raises(InvalidKey):
            await app.publish_many("orders", [*messages, ("bad..key", 0)])
        assert await stored(app) == []
        assert await app.publish_many("orders", messages) == 2500
        assert [message[2] for message in await stored(app)] == list(range(2500))


@pytest.mark.asyncio
async def test_messages_published_inside_the_callers_transaction_are_there_when_it_commits(app: App, dsn: str) -> None:
    seen = Seen()

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app), own_connection(dsn) as connection:
        async with connection.transaction():
            assert await app.publish("orders", "a", 1, tx=connection) == 1
            await app.publish_many("orders", [("a", 2)], tx=connection)
            assert await stored(app) == []
        await seen.until(2)
        assert seen.notes == [1, 2]


@pytest.mark.asyncio
async def test_messages_published_inside_a_transaction_that_is_rolled_back_are_not_stored(app: App, dsn: str) -> None:
    seen: list[int] = []

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.append(number)

    async with running(app), own_connection(dsn) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await app.publish("orders", "a", 1, tx=connection)
        await transaction.rollback()
        await app.publish("orders", "a", 2)
        await app.idle()
        assert [message[1:3] for message in await stored(app)] == [("a", 2)]
    assert seen == [2]


@pytest.mark.asyncio
async def test_a_connection_of_the_caller_is_enough(app: App, dsn: str) -> None:
    async with app:
        pass
    async with own_connection(dsn) as connection:
        await app.publish("orders", "a", 1, tx=connection)
    async with app:
        assert len(await stored(app)) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("own", [False, True], ids=["the app's connection", "one's own connection"])
async def test_an_unknown_stream_is_reported_and_not_created(app: App, dsn: str, own: bool) -> None:
    async with app, own_connection(dsn) as connection:
        given = connection if own else None
        with pytest.raises(UnknownStream, match="There is no stream 'oders': create it, or mend the name"):
            await app.publish("oders", "a", 1, tx=given)
        with pytest.raises(UnknownStream, match="There is no stream 'oders'"):
            await app.publish_many("oders", [("a", 1)], tx=given)


BAD_KEYS: list[tuple[Any, str]] = [
    ("a..b", "The key 'a..b' has an empty token"),
    ("a.*", "The key 'a.*' has a token that is exactly '*'"),
    ("", "The key is empty"),
    ("a\0", r"The key 'a\x00' holds a NUL character"),
    ("\ud800", r"The key '\ud800' holds half of a surrogate pair"),
    ("k" * 1025, "is longer than 1024 bytes"),
    (7, "A key is a string such as 'orders.us.42', not int"),
    (None, "A key is a string such as 'orders.us.42', not NoneType"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize("own", [False, True], ids=["the app's connection", "one's own connection"])
async def test_a_bad_key_is_named_exactly(app: App, dsn: str, own: bool) -> None:
    async with app, own_connection(dsn) as connection:
        given = connection if own else None
        for key, said in BAD_KEYS:
            with pytest.raises(InvalidKey) as caught:
                await app.publish("orders", key, 1, tx=given)
            assert said in str(caught.value)
            with pytest.raises(InvalidKey) as caught:
                await app.publish_many("orders", [("good", 1), (key, 2), ("bad..too", 3)], tx=given)
            assert said in str(caught.value)
        assert await stored(app) == []
        for _ in range(2):
            await app.publish_many("orders", [("good", 1)] * 20, tx=given)
        for key, said in BAD_KEYS:  # by the function of the stream, and checked together
            with pytest.raises(InvalidKey) as caught:
                await app.publish_many("orders", [("good", 1)] * 20 + [(key, 2)], tx=given)
            assert said in str(caught.value)
        assert len(await stored(app)) == 40


@pytest.mark.asyncio
async def test_data_that_json_or_postgres_can_not_hold_is_refused(app: App) -> None:
    loop: list[Any] = []
    loop.append(loop)
    async with app:
        for data, said in (
            (object(), "The data can't be written as JSON: Encoding objects of type object is unsupported"),
            ({"f": lambda: 0}, "The data can't be written as JSON"),
            (loop, "The data can't be written as JSON"),
            ("\ud800", "The data can't be written as JSON"),
            ({"a": ["x\0"]}, "The data has a string with a NUL character"),
            (msgspec.Raw(b'{"open": '), "The data is not JSON that Postgres can store"),
            (msgspec.Raw(b'"\\u0000"'), "NUL character"),
        ):
            with pytest.raises(InvalidData) as caught:
                await app.publish("orders", "a", data)
            assert said in str(caught.value)
            with pytest.raises(InvalidData):
                await app.publish_many("orders", [("a", 1), ("b", data)])
        assert await stored(app) == []
        await app.publish("orders", "a", "a text about \\u0000")
        assert (await stored(app))[0][2] == "a text about \\u0000"


@pytest.mark.asyncio
async def test_headers_and_tuples_of_a_wrong_shape_are_refused(app: App) -> None:
    async with app:
        for headers in (["a"], {1: "a"}, {"a": object()}, {"a": "\0"}):
            with pytest.raises(InvalidData):
                await app.publish("orders", "a", 1, headers=headers)  # type: ignore[arg-type]
        for message in (("a",), ("a", 1, None, 2), 7):
            with pytest.raises(InvalidData, match=r"Message 1 is not a \(key, data\) or \(key, data, headers\) tuple"):
                await app.publish_many("orders", [("a", 1), message])  # type: ignore[list-item]
        assert await stored(app) == []


@pytest.mark.asyncio
async def test_bad_input_is_one_kind_of_error_and_a_value_error_too(app: App) -> None:
    async with app:
        with pytest.raises(InvalidInput):
            await app.publish("orders", "a..b", 1)
        with pytest.raises(ValueError, match="NUL"):
            await app.publish("orders", "a", "\0")


@pytest.mark.asyncio
async def test_publishing_needs_a_connection(app: App) -> None:
    for work in (app.publish("orders", "a", 1), app.publish_many("orders", [("a", 1)])):
        with pytest.raises(ConfigurationError, match=r"The app is not connected\. Use it inside `async with app:`"):
            await work
