"""Batches in transactions, and messages that handlers return to be published."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from headrace import App, Batch, ConfigurationError, Message, Reject, Retry, Transaction
from tests.runtime.running import Seen, consumer, dead_letters, numbered, running, work_off


@pytest_asyncio.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    app = App(dsn, streams=["orders"])
    async with app:
        await app.database.fetch("create table effects (id bigint, xid text default pg_current_xact_id()::text)")
        yield app


async def effects(app: App) -> list[int]:
    return [row[0] for row in await app.database.fetch("select id from effects order by id")]


async def published(app: App, stream: str = "invoices") -> list[tuple[str, str, str | None]]:
    rows = await app.database.fetch(
        f"select key, data::text, headers::text from headrace_streams.{stream} order by seq"
    )
    return [tuple(row) for row in rows]


async def nothing_is_left(app: App) -> None:
    info = await consumer(app, "ship")
    assert (info.lag, info.in_flight, info.parked) == (0, 0, 0)
    assert await app.database.fetchval("select count(*) from headrace_internal.acks") == 0


INSERT = "insert into effects (id) select * from unnest($1::bigint[])"


@pytest.mark.asyncio
async def test_a_batch_is_one_transaction(app: App) -> None:
    @app.consumer("orders", batch=50, batch_timeout=5, transactional=True)
    async def ship(numbers: list[int], tx: Transaction) -> None:
        await tx.execute(INSERT, numbers)

    await work_off(app, *numbered(f"k{n % 10}" for n in range(100)))
    assert await effects(app) == list(range(1, 101))
    assert await app.database.fetchval("select count(distinct xid) from effects") == 2
    await nothing_is_left(app)


@pytest.mark.asyncio
@pytest.mark.long
async def test_single_outcomes_of_a_batch_are_settled_after_the_rest_has_committed(app: App) -> None:
    calls = Seen()

    @app.consumer("orders", batch=3, batch_timeout=5, transactional=True, max_deliver=2, backoff=0)
    async def ship(numbers: list[int], batch: Batch, tx: Transaction) -> Any:
        calls.note(numbers)
        if len(numbers) < 3:
            await tx.execute(INSERT, numbers)
            return None
        await tx.execute(INSERT, numbers[:1])
        return [None, Retry("later", after=0), Reject("never")]

    await work_off(app, ("a", 1), ("b", 2), ("c", 3))
    assert calls.notes == [[1, 2, 3], [2]]
    assert await effects(app) == [1, 2]
    assert [(letter.seq, letter.error) for letter in await dead_letters(app, "ship")] == [(3, "never")]
    await nothing_is_left(app)


@pytest.mark.asyncio
async def test_a_batch_that_raises_leaves_nothing_and_its_halves_are_tried(app: App) -> None:
    @app.consumer("orders", batch=8, batch_timeout=5, transactional=True, max_deliver=1, on_batch_error="bisect")
    async def ship(numbers: list[int], tx: Transaction) -> None:
        await tx.execute(INSERT, numbers)
        if 5 in numbers:
            raise RuntimeError("not five")

    await work_off(app, *numbered("abcdefgh"))
    assert await effects(app) == [1, 2, 3, 4, 6, 7, 8]
    assert [letter.seq for letter in await dead_letters(app, "ship")] == [5]
    await nothing_is_left(app)


@pytest.mark.asyncio
@pytest.mark.parametrize("transactional", [False, True], ids=["", "transactional"])
async def test_messages_that_a_batch_returns_are_published_with_its_acks(app: App, transactional: bool) -> None:
    @app.consumer("orders", batch=3, batch_timeout=5, publishes="invoices", transactional=transactional, backoff=0)
    async def ship(numbers: list[int], batch: Batch) -> Any:
        if batch[0].attempt == 1:
            return Retry(after=0)
        return [(f"i{number}", number) for number in numbers]

    await work_off(app, ("a", 1), ("b", 2), ("c", 3))
    assert await published(app) == [("i1", "1", None), ("i2", "2", None), ("i3", "3", None)]
    await nothing_is_left(app)


@pytest.mark.asyncio
@pytest.mark.parametrize("transactional", [False, True], ids=["", "transactional"])
async def test_messages_that_a_handler_returns_are_published(app: App, transactional: bool) -> None:
    @app.consumer("orders", publishes="invoices", transactional=transactional)
    async def ship(number: int) -> Any:
        match number:
            case 1:
                return ("a", {"n": 1})
            case 2:
                return ("b", 2, {"h": 1})
            case 3:
                return [("c", 3), ("d", 4, {"h": 2})]
            case _:
                return None

    await work_off(app, ("k", 1), ("k", 2), ("k", 3), ("k", 4))
    assert await published(app) == [
        ("a", '{"n":1}', None),
        ("b", "2", '{"h":1}'),
        ("c", "3", None),
        ("d", "4", '{"h":2}'),
    ]
    await nothing_is_left(app)


@pytest.mark.asyncio
async def test_a_plain_function_may_return_messages_to_publish(app: App) -> None:
    @app.consumer("orders", publishes="invoices")
    def ship(number: int) -> tuple[str, int]:
        return ("a", number)

    await work_off(app, ("k", 7))
    assert await published(app) == [("a", "7", None)]
    await nothing_is_left(app)


@pytest.mark.asyncio
@pytest.mark.parametrize("transactional", [False, True], ids=["", "transactional"])
@pytest.mark.parametrize("wrong", [7, {"a": 1}, ("a",), ("a", 1, {}, 2), (1, "a"), [("a", 1), 7], "ab"])
async def test_a_returned_value_that_is_no_message_fails_with_what_would_be_right(
    app: App, transactional: bool, wrong: Any
) -> None:
    @app.consumer("orders", publishes="invoices", transactional=transactional, max_deliver=1)
    async def ship(number: int) -> Any:
        return wrong

    await work_off(app, ("k", 7))
    [letter] = await dead_letters(app, "ship")
    assert letter.error is not None
    assert letter.error.startswith("InvalidInput: A handler with publishes='invoices' returned ")
    assert await published(app) == []


@pytest.mark.asyncio
async def test_a_message_that_the_stream_refuses_fails_the_one_that_it_came_from(app: App) -> None:
    @app.consumer("orders", publishes="invoices", max_deliver=1)
    async def ship(number: int) -> Any:
        return [("good", number), ("bad..key", number)]

    await work_off(app, ("k", 7))
    [letter] = await dead_letters(app, "ship")
    assert letter.error is not None
    assert letter.error.startswith("InvalidKey: The key 'bad..key' has an empty token")
    assert await published(app) == []


@pytest.mark.asyncio
async def test_a_returned_message_wakes_the_next_consumer(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", publishes="invoices")
    async def ship(number: int) -> Any:
        return ("k", number)

    @app.consumer("invoices")
    async def bill(message: Message) -> None:
        seen.note(message.data)

    async with running(app):
        await app.publish("orders", "k", 7)
        assert await seen.until(1) == [7]


def test_a_plain_function_can_not_take_a_transaction_of_the_event_loop() -> None:
    app = App("postgresql://nowhere")
    with pytest.raises(ConfigurationError, match="transactional=True needs an `async def`"):

        @app.consumer("orders", transactional=True)
        def ship(number: int) -> None: ...
