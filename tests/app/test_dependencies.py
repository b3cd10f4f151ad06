"""Dependencies: found by annotation, created once per app or per delivery, and torn down at the end of that."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from headrace import App, Batch, Depends, Message
from headrace.runtime.messages.transaction import Transaction
from tests.app.providing import Clock, Greeter, Noon, Pool, Session
from tests.runtime.running import Seen, running, work_off


@pytest.fixture
def app(dsn: str) -> App:
    return App(dsn)


@pytest.fixture
def steps() -> list[Any]:
    """The recorded events, in order."""
    return []


# --- scopes and lifetimes


@pytest.mark.asyncio
async def test_dependencies_are_found_by_their_type_through_each_other(app: App) -> None:
    seen = Seen()
    app.provide(Pool, scope="app")
    app.provide(Noon, scope="app", provides=Clock)
    app.provide(Greeter)

    @app.provide
    async def session(pool: Pool, message: Message) -> Session:
        return Session(pool, message.seq)

    @app.consumer("orders")
    async def ship(greeter: Depends[Greeter], number: int, session: Depends[Session], pool: Depends[Pool]) -> None:
        seen.note((number, greeter.clock.now(), greeter.session is session, session.pool is pool, session.seq))

    await work_off(app, ("a", 1), ("a", 2))
    assert seen.notes == [(1, 12, True, True, 1), (2, 12, True, True, 2)]


@pytest.mark.asyncio
async def test_dependencies_of_the_app_are_made_once_before_a_consumer_starts_and_torn_down_after_the_drain(
    app: App, steps: list[Any]
) -> None:
    @app.provide(scope="app")
    async def pool() -> AsyncIterator[Pool]:
        steps.append("made")
        yield Pool()
        steps.append("torn down")

    @app.consumer("orders")
    async def ship(number: int, pool: Depends[Pool]) -> None:
        steps.append(number)

    async with running(app):
        assert steps == ["made"]
        await app.publish_many("orders", [("a", 1), ("a", 2)])
        await app.idle()
    assert steps == ["made", 1, 2, "torn down"]
    await work_off(app, ("a", 3))
    assert steps[4:] == ["made", 3, "torn down"]


@pytest.mark.asyncio
async def test_dependencies_of_a_message_are_made_once_and_torn_down_in_reverse_before_the_next(
    app: App, steps: list[Any]
) -> None:
    class Outer: ...

    class Inner:
        def __init__(self, outer: Outer) -> None: ...

    def outer() -> Iterator[Outer]:
        steps.append("outer")
        yield Outer()
        steps.append("outer ends")

    async def inner(_: object) -> AsyncIterator[Inner]:
        steps.append("inner")
        yield Inner(Outer())
        steps.append("inner ends")

    outer.__annotations__["return"] = Iterator[Outer]
    inner.__annotations__.update({"_": Outer, "return": AsyncIterator[Inner]})
    app.provide(outer)
    app.provide(inner)

    async def ship(number, inner, outer) -> None:  # type: ignore[no-untyped-def]
        steps.append(number)

    ship.__annotations__.update(number=int, inner=Depends[Inner], outer=Depends[Outer])
    app.consumer("orders")(ship)

    await work_off(app, ("a", 1), ("a", 2))
    once = ["outer", "inner", None, "inner ends", "outer ends"]
    assert steps == [1 if s is None else s for s in once] + [2 if s is None else s for s in once]


@pytest.mark.asyncio
async def test_a_dependency_of_the_app_may_keep_a_task_group(app: App) -> None:
    """The task group is entered and left in one task, as anyio requires."""
    seen = Seen()

    @app.provide(scope="app")
    async def background() -> AsyncIterator[anyio.abc.TaskGroup]:
        async with anyio.create_task_group() as group:
            yield group

    @app.consumer("orders")
    async def ship(number: int, background: Depends[anyio.abc.TaskGroup]) -> None:
        background.start_soon(note, number)

    async def note(number: int) -> None:
        seen.note(number)

    await work_off(app, ("a", 1))
    assert seen.notes == [1]


@pytest.mark.asyncio
async def test_a_dependency_that_is_not_used_is_not_made(app: App) -> None:
    made: list[str] = []

    @app.provide(scope="app")
    def pool() -> Pool:
        made.append("pool")
        return Pool()

    @app.provide
    def session(nothing_provides_this: Clock) -> Session:
        raise AssertionError

    @app.consumer("orders")
    async def ship(app: Depends[App]) -> None: ...

    await work_off(app, ("a", 1))
    assert made == []


@pytest.mark.asyncio
async def test_the_message_the_app_and_its_state_are_there_without_being_provided(app: App) -> None:
    seen: list[Any] = []

    @app.lifespan
    async def pool(app: App) -> AsyncIterator[Pool]:
        yield Pool()

    @app.consumer("orders")
    async def ship(pool: Depends[Pool], message: Depends[Message], it: Depends[App]) -> None:
        seen.append((pool is it.state, message.seq, it is app))

    await work_off(app, ("a", 1))
    assert seen == [(True, 1, True)]


@pytest.mark.asyncio
async def test_a_plain_handler_in_a_thread_takes_dependencies_made_on_the_loop(app: App) -> None:
    seen: list[Any] = []
    app.provide(Pool, scope="app")

    @app.provide
    async def session(pool: Pool) -> AsyncIterator[Session]:
        await anyio.lowlevel.checkpoint()
        yield Session(pool)
        seen.append(threading.current_thread() is threading.main_thread())

    @app.consumer("orders")
    def ship(number: int, *, session: Depends[Session], pool: Depends[Pool]) -> None:
        seen.append((session.pool is pool, threading.current_thread() is threading.main_thread()))

    await work_off(app, ("a", 1))
    assert seen == [(True, False), True]


@pytest.mark.asyncio
async def test_a_batch_is_one_delivery(app: App, steps: list[Any]) -> None:
    @app.provide
    async def session(batch: Batch) -> AsyncIterator[Session]:
        steps.append("made")
        yield Session(Pool(), len(batch))
        steps.append("torn down")

    @app.consumer("orders", batch=3, batch_timeout="30s")
    async def ship(numbers: list[int], session: Depends[Session]) -> None:
        steps.append((numbers, session.seq))

    await work_off(app, ("a", 1), ("a", 2), ("a", 3))
    assert steps == ["made", ([1, 2, 3], 3), "torn down"]


@pytest.mark.asyncio
async def test_dependencies_of_a_transactional_handler_are_inside_its_transaction(app: App) -> None:
    @app.provide
    async def session(tx: Transaction, message: Message) -> AsyncIterator[Session]:
        yield Session(Pool())
        await tx.connection.execute("insert into ledger values ($1)", message.seq)

    @app.consumer("orders", transactional=True, max_deliver=1)
    async def ship(number: int, session: Depends[Session]) -> None:
        if number == 2:
            raise ValueError("rolled back, with what the dependency has written")

    async with app:
        await app.database.fetchval("create table ledger (seq int)")
        await work_off(app, ("a", 1), ("b", 2))
        assert [row["seq"] for row in await app.database.fetch("select seq from ledger")] == [1]
