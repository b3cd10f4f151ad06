"""Middleware around every handler or around one. It sees the handler's result, and its own result counts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import pytest

from headrace import App, Batch, ConfigurationError, Depends, Message, Next, Reject, Retry
from headrace.runtime.messages.transaction import Transaction
from tests.runtime.running import Seen, consumer, dead_letters, numbered, running, work_off


@pytest.fixture
def steps() -> list[Any]:
    """The recorded events, in order."""
    return []


def noting(steps: list[Any], name: str) -> Any:
    async def middleware(delivery: Message, call_next: Next) -> Any:
        steps.append(name)
        try:
            return await call_next()
        finally:
            steps.append(f"{name} ends")

    return middleware


@pytest.mark.asyncio
async def test_middleware_of_the_app_is_outside_that_of_the_consumer_each_in_order(app: App, steps: list[Any]) -> None:
    @app.consumer("orders", middleware=[noting(steps, "own 1"), noting(steps, "own 2")])
    async def ship(number: int) -> None:
        steps.append(number)

    @app.consumer("orders", filter="none")
    async def other(number: int) -> None: ...

    app.middleware(noting(steps, "app 1"))  # its place in the module does not matter
    app.middleware(noting(steps, "app 2"))
    await work_off(app, ("a", 7))
    way = ["app 1", "app 2", "own 1", "own 2"]
    assert steps == [*way, 7, *(f"{name} ends" for name in reversed(way))]


@pytest.mark.asyncio
async def test_middleware_sees_the_delivery_its_payload_and_the_result_of_the_handler(app: App) -> None:
    seen = Seen()

    @app.middleware
    async def watch(delivery: Message, call_next: Next) -> Any:
        try:
            result = await call_next()
        except Exception as error:
            seen.note((delivery.data, type(error)))
            raise
        seen.note((delivery.data, type(result)))
        return result

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int) -> Any:
        match number:
            case 1:
                return "anything"
            case 2:
                return Retry("later")
            case 3:
                raise Reject("never")
            case 4:
                raise ValueError("a failure")

    async with running(app):
        await app.publish_many("orders", [("a", n) for n in (1, 2, 3, 4)])
        await app.idle()
        letters = await dead_letters(app, "ship")
    assert seen.notes == [(1, str), (2, Retry), (3, Reject), (4, ValueError)]
    assert [(letter.seq, letter.reason) for letter in letters] == [(2, "exhausted"), (3, "rejected"), (4, "exhausted")]


@pytest.mark.asyncio
async def test_the_result_of_middleware_replaces_that_of_the_handler(app: App) -> None:
    async def translate(delivery: Message, call_next: Next) -> Any:
        try:
            return await call_next()
        except KeyError as error:
            raise Reject("unknown customer") from error
        except ValueError:
            return None  # this is an ack
        finally:
            if delivery.data == 3:
                raise LookupError("of its own")

    @app.consumer("orders", max_deliver=1, middleware=[translate])
    async def ship(number: int) -> None:
        raise {1: KeyError, 2: ValueError, 3: ValueError}[number]

    async with running(app):
        await app.publish_many("orders", [("a", n) for n in (1, 2, 3)])
        await app.idle()
        letters = await dead_letters(app, "ship")
    assert [(letter.seq, letter.error) for letter in letters] == [
        (1, "unknown customer"),
        (3, "LookupError: of its own"),
    ]


@pytest.mark.asyncio
async def test_middleware_that_does_not_call_the_handler_settles_the_message_by_its_result(
    app: App, steps: list[Any]
) -> None:
    async def gate(delivery: Message, call_next: Next) -> Any:
        if delivery.data == 1:
            return None
        if delivery.data == 2:
            return Reject("not here")
        return await call_next()

    @app.consumer("orders", middleware=[gate])
    async def ship(number: int) -> None:
        steps.append(number)

    async with running(app):
        await app.publish_many("orders", [("a", n) for n in (1, 2, 3)])
        await app.idle()
        assert [letter.error for letter in await dead_letters(app, "ship")] == ["not here"]
        assert (await consumer(app, "ship")).lag == 0
    assert steps == [3]


async def again(delivery: Message, call_next: Next) -> Any:
    """Retry once without releasing the message."""
    try:
        return await call_next()
    except ConnectionError:
        return await call_next()


@pytest.mark.asyncio
async def test_middleware_may_call_the_handler_again_with_fresh_dependencies(app: App, steps: list[Any]) -> None:
    class Session: ...

    async def session() -> AsyncIterator[object]:
        steps.append("made")
        yield Session()

    app.provide(session, provides=Session)

    async def ship(number: int, session: object) -> None:
        steps.append(number)
        if steps.count(number) == 1:
            raise ConnectionError

    ship.__annotations__["session"] = Depends[Session]
    app.consumer("orders", middleware=[again], max_deliver=1)(ship)
    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        assert await dead_letters(app, "ship") == []
    assert steps == ["made", 1, "made", 1]


@pytest.mark.asyncio
async def test_middleware_may_call_the_handler_again_in_a_fresh_transaction(app: App) -> None:
    attempts: list[int] = []

    @app.consumer("orders", transactional=True, middleware=[again], max_deliver=1)
    async def ship(number: int, tx: Transaction) -> None:
        attempts.append(number)
        await tx.connection.execute("insert into ledger values ($1)", len(attempts))
        if len(attempts) == 1:
            raise ConnectionError

    async with app:
        await app.database.fetchval("create table ledger (attempt int)")
        await work_off(app, ("a", 1))
        assert [row["attempt"] for row in await app.database.fetch("select attempt from ledger")] == [2]
        assert (await consumer(app, "ship")).lag == 0


@pytest.mark.asyncio
async def test_middleware_may_not_call_the_handler_twice_at_the_same_time(app: App) -> None:
    inside = anyio.Event()

    async def twice(delivery: Message, call_next: Next) -> Any:
        async with anyio.create_task_group() as group:
            group.start_soon(call_next)
            await inside.wait()
            try:
                await call_next()
            finally:
                group.cancel_scope.cancel()

    @app.consumer("orders", middleware=[twice], max_deliver=1)
    async def ship(number: int) -> None:
        inside.set()
        await anyio.sleep_forever()

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert letter.traceback is not None
    assert "RuntimeError: call_next was called while it still runs" in letter.traceback


@pytest.mark.asyncio
async def test_middleware_is_around_batches_and_plain_functions_too(app: App, steps: list[Any]) -> None:
    @app.middleware
    async def count(delivery: Message | Batch, call_next: Next) -> Any:
        steps.append((delivery.consumer, len(delivery.messages)))
        return await call_next()

    @app.consumer("orders", batch=3, batch_timeout="30s")
    async def many(numbers: list[int]) -> None: ...

    @app.consumer("orders", filter="a")
    def plain(number: int) -> None: ...

    await work_off(app, *numbered("abc"))
    assert sorted(steps) == [("many", 3), ("plain", 1)]


@pytest.mark.asyncio
async def test_the_result_of_middleware_counts_for_all_messages_of_a_batch_without_an_outcome(app: App) -> None:
    async def refuse(batch: Batch, call_next: Next) -> Any:
        await call_next()
        return Reject("by the middleware")

    @app.consumer("orders", batch=3, batch_timeout="30s", middleware=[refuse])
    async def ship(numbers: list[int]) -> list[Any]:
        return [None, Reject("by the handler"), None]

    async with running(app):
        await app.publish_many("orders", numbered("abc"))
        await app.idle()
        letters = await dead_letters(app, "ship")
    assert sorted((letter.seq, letter.error) for letter in letters) == [
        (1, "by the middleware"),
        (2, "by the handler"),
        (3, "by the middleware"),
    ]


@pytest.mark.asyncio
async def test_a_batch_that_is_retried_in_place_has_only_the_outcomes_of_the_retry(app: App) -> None:
    attempts: list[int] = []

    @app.consumer("orders", batch=3, batch_timeout="30s", middleware=[again], max_deliver=1)
    async def ship(batch: Batch) -> None:
        attempts.append(len(batch))
        if len(attempts) == 1:
            batch.reject(batch[0])
            raise ConnectionError

    async with running(app):
        await app.publish_many("orders", numbered("abc"))
        await app.idle()
        assert await dead_letters(app, "ship") == []
    assert attempts == [3, 3]


class Timed:
    async def __call__(self, delivery: Message, call_next: Next) -> Any:
        return await call_next()

    async def method(self, delivery: Message, call_next: Next) -> Any:
        return await call_next()


async def named(name: str, delivery: Message, call_next: Next) -> Any:
    return await call_next()


def test_any_coroutine_function_is_accepted_as_middleware_and_nothing_else() -> None:
    app = App("postgresql://nowhere")
    for right in (Timed(), Timed().method, partial(named, "it")):
        assert app.middleware(right) is right

    def plain(delivery: Message, call_next: Next) -> Any: ...

    async def narrow(delivery: Message) -> Any: ...

    async def ship(number: int) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"The middleware 'plain' must be a coroutine function: `async def plain"
    ):
        app.middleware(plain)
    with pytest.raises(ConfigurationError, match="The middleware 'int' must be a coroutine function"):
        app.middleware(7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="The middleware 'narrow' must take two arguments"):
        app.consumer("orders", middleware=[narrow])(ship)  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match=r"middleware=named must be a list, such as \[named\]"):
        app.consumer("orders", middleware=named)(ship)  # type: ignore[arg-type]
