"""Dependencies: found by annotation, made once or for each delivery, torn down when that ends, and refused at the start when they can't be."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Annotated, Any, Protocol

import anyio
import pytest
from dishka import FromComponent, FromDishka, Provider, Scope, provide

from headrace import App, Batch, ConfigurationError, Depends, Message, Reject, Retry
from headrace.runtime.handlers import dependencies
from headrace.runtime.transaction import Transaction
from tests.runtime.running import Seen, consumer, dead_letters, running, work_off


@pytest.fixture
def app(dsn: str) -> App:
    return App(dsn)


@pytest.fixture
def steps() -> list[Any]:
    """What happened, in its order."""
    return []


class Pool:
    def __init__(self) -> None:
        self.open = True


class Session:
    def __init__(self, pool: Pool, seq: int = 0) -> None:
        self.pool, self.seq = pool, seq


class Clock(Protocol):
    def now(self) -> int: ...


class Noon:
    def now(self) -> int:
        return 12


class Greeter:
    """Made from what its `__init__` takes."""

    def __init__(self, clock: Clock, session: Depends[Session]) -> None:
        self.clock, self.session = clock, session


# --- what is made, when, and how often


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
async def test_those_of_the_app_are_made_once_before_a_consumer_starts_and_torn_down_after_the_drain(
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
async def test_those_of_a_message_are_made_once_for_it_and_torn_down_before_the_next_the_last_one_first(
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
async def test_what_lives_as_long_as_the_app_may_keep_a_task_group(app: App) -> None:
    """It is entered and left in one task, as anyio wants it."""
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
async def test_what_nobody_takes_is_not_made(app: App) -> None:
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
async def test_a_plain_handler_in_its_thread_takes_what_was_made_on_the_loop(app: App) -> None:
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
async def test_in_a_transactional_handler_they_are_inside_its_transaction(app: App) -> None:
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


# --- failures


@pytest.mark.asyncio
async def test_a_dependency_that_fails_is_a_failed_attempt_and_what_was_made_is_torn_down(
    app: App, steps: list[Any]
) -> None:
    @app.provide
    async def pool() -> AsyncIterator[Pool]:
        try:
            yield Pool()
        except LookupError as error:
            steps.append(str(error))
            raise

    @app.provide
    async def session(pool: Pool) -> Session:
        raise LookupError("no session today")

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int, session: Depends[Session]) -> None:
        steps.append("ran")

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert letter.error == "LookupError: no session today"
    assert steps == ["no session today"]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["async generator", "generator", "async context manager", "context manager"])
async def test_a_generator_sees_what_the_handler_raises_or_returns_as_a_failure(
    app: App, steps: list[Any], kind: str
) -> None:
    async def of_async() -> AsyncIterator[Session]:
        try:
            yield Session(Pool())
        except Exception as error:
            steps.append(type(error))
            raise
        else:
            steps.append("fine")

    def of_plain() -> Iterator[Session]:
        try:
            yield Session(Pool())
        except Exception as error:
            steps.append(type(error))
            return  # which changes nothing: the handler has failed
        else:
            steps.append("fine")

    app.provide(
        {
            "async generator": of_async,
            "generator": of_plain,
            "async context manager": asynccontextmanager(of_async),
            "context manager": contextmanager(of_plain),
        }[kind]
    )

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int, session: Depends[Session]) -> Any:
        match number:
            case 1:
                raise ValueError("raised")
            case 2:
                return Retry("returned")
            case 3:
                raise StopIteration("even this")
            case 4:
                raise Reject("raised, too")

    async with running(app):
        await app.publish_many("orders", [(f"k{n}", n) for n in range(5)])
        await app.idle()
        assert sorted(letter.seq for letter in await dead_letters(app, "ship")) == [2, 3, 4, 5]
    # Python itself makes a RuntimeError of a StopIteration that leaves a coroutine.
    assert sorted(map(str, steps)) == sorted(map(str, ["fine", ValueError, Retry, RuntimeError, Reject]))


@pytest.mark.asyncio
async def test_a_teardown_that_fails_before_the_ack_fails_the_attempt(app: App, steps: list[Any]) -> None:
    """Or else a session that commits there, and can't, would lose a message."""

    @app.provide
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()
        steps.append("the pool ends all the same")

    @app.provide
    async def session(pool: Pool) -> AsyncIterator[Session]:
        yield Session(pool)
        raise OSError("the commit failed")

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int, session: Depends[Session]) -> None: ...

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert letter.error == "OSError: the commit failed"
    assert steps == ["the pool ends all the same"]


@pytest.mark.asyncio
async def test_several_teardowns_that_fail_are_told_together(app: App) -> None:
    @app.provide
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()
        raise OSError("the pool")

    @app.provide
    def session(pool: Pool) -> Iterator[Session]:
        yield Session(pool)
        raise OSError("the session")

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int, session: Depends[Session]) -> None: ...

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert letter.error == "ExceptionGroup: dependencies could not be torn down (2 sub-exceptions)"
    assert letter.traceback is not None
    assert "OSError: the pool" in letter.traceback
    assert "OSError: the session" in letter.traceback


@pytest.mark.asyncio
async def test_a_teardown_that_fails_undoes_no_ack_and_is_told_in_the_log(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.provide(scope="app")
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()
        raise OSError("the pool")

    @app.provide
    async def session(pool: Pool) -> AsyncIterator[Session]:
        yield Session(pool)
        raise OSError("the session")

    @app.consumer("orders")
    async def ship(message: Message, session: Depends[Session]) -> None:
        await message.ack()

    async with app:
        await work_off(app, ("a", 1))
        left = await consumer(app, "ship")
    assert (left.lag, left.parked, left.dead_letters) == (0, 0, 0)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        "The teardown of a dependency failed: OSError: the session",
        "The teardown of a dependency failed: OSError: the pool",
    ]


@pytest.mark.asyncio
async def test_the_handler_s_error_counts_and_not_that_of_the_teardown(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.provide
    async def session() -> AsyncIterator[Session]:
        try:
            yield Session(Pool())
        finally:
            raise OSError("the rollback failed")

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int, session: Depends[Session]) -> None:
        raise ValueError("the handler failed")

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert letter.error == "ValueError: the handler failed"
    assert "The teardown of a dependency failed: OSError: the rollback failed" in caplog.messages


@pytest.mark.asyncio
async def test_a_handler_that_is_stopped_leaves_nothing_open(app: App, steps: list[Any]) -> None:
    @app.provide
    async def pool() -> AsyncIterator[Pool]:
        try:
            yield Pool()
        finally:
            await anyio.lowlevel.checkpoint()  # it may still wait, although the handler was cancelled
            steps.append("pool")

    @app.provide
    async def session(pool: Pool) -> AsyncIterator[Session]:
        try:
            yield Session(pool)
        except asyncio.CancelledError:
            await anyio.lowlevel.checkpoint()
            steps.append("session")
            raise

    @app.consumer("orders", timeout=0.05, max_deliver=1)
    async def ship(number: int, session: Depends[Session]) -> None:
        await anyio.sleep_forever()

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert letter.error == "The handler took longer than its timeout of 0.05 s."
    assert steps == ["session", "pool"]


@pytest.mark.asyncio
async def test_a_teardown_that_is_stopped_lets_the_others_have_their_turn(app: App, steps: list[Any]) -> None:
    @app.provide
    async def pool() -> AsyncIterator[Pool]:
        try:
            yield Pool()
        except BaseException as error:
            await anyio.lowlevel.checkpoint()
            steps.append(type(error))
            raise

    @app.provide
    async def session(pool: Pool) -> AsyncIterator[Session]:
        yield Session(pool)
        await anyio.sleep_forever()

    @app.consumer("orders", timeout=0.05, max_deliver=1)
    async def ship(number: int, session: Depends[Session]) -> None: ...

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert letter.error == "The handler took longer than its timeout of 0.05 s."
    assert steps == [asyncio.CancelledError]


@pytest.mark.asyncio
async def test_a_teardown_after_a_failure_has_a_limit(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "GRACE", 0.05)

    @app.provide
    async def session() -> AsyncIterator[Session]:
        try:
            yield Session(Pool())
        finally:
            await anyio.sleep_forever()

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int, session: Depends[Session]) -> None:
        raise ValueError("the handler failed")

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert letter.error == "ValueError: the handler failed"
    assert (
        "The teardown of a dependency failed: TimeoutError: it took longer than 0.05 s, and was left off"
        in caplog.messages
    )


@pytest.mark.asyncio
async def test_what_can_not_be_made_for_the_app_ends_the_start_as_it_is(app: App, steps: list[Any]) -> None:
    @app.provide(scope="app")
    async def pool() -> AsyncIterator[Pool]:
        try:
            yield Pool()
        except OSError:
            steps.append("torn down")
            raise

    @app.provide(scope="app")
    async def session(pool: Pool) -> Session:
        raise OSError("unreachable")

    @app.consumer("orders")
    async def ship(session: Depends[Session]) -> None: ...

    with pytest.raises(OSError, match=r"^unreachable$"):
        async with running(app):
            pass
    assert steps == ["torn down"]
    with pytest.raises(ConfigurationError, match="not connected"):
        _ = app.database


# --- what can't be


async def refused(app: App) -> str:
    with pytest.raises(ConfigurationError) as caught:
        await app.preflight()
    return str(caught.value)


@pytest.mark.asyncio
async def test_a_missing_dependency_is_an_error_at_the_start(app: App) -> None:
    @app.consumer("orders")
    async def ship(number: int, pool: Depends[Pool]) -> None: ...

    assert await refused(app) == (
        "The handler 'ship' takes Pool ('pool'), and nothing provides Pool: write a function that returns it, with @app.provide."
    )
    with pytest.raises(ConfigurationError, match="nothing provides Pool"):
        async with running(app):
            pass


@pytest.mark.asyncio
async def test_so_is_one_that_is_missing_further_on_and_one_that_needs_itself(app: App) -> None:
    app.provide(Greeter)

    @app.provide
    def session(pool: Pool) -> Session:
        return Session(pool)

    @app.consumer("orders")
    async def ship(it: Depends[Greeter]) -> None: ...

    assert (
        await refused(app)
        == "The handler 'ship' takes Greeter ('it'), which needs Clock, and nothing provides Clock: write a"
        " function that returns it, with @app.provide."
    )

    @app.provide
    def clock(session: Session) -> Clock:
        return Noon()

    @app.provide
    def pool(clock: Clock) -> Pool:
        return Pool()

    assert await refused(app) == (
        "The handler 'ship' takes Greeter ('it'), which needs Clock, which needs Session, which needs Pool, which needs Clock, and so on"
        " in a circle: let one of them do without the next."
    )


@pytest.mark.asyncio
async def test_what_lives_long_may_not_need_what_lives_short(app: App) -> None:
    @app.provide
    def pool() -> Pool:
        return Pool()

    @app.provide(scope="app")
    def session(pool: Pool) -> Session:
        return Session(pool)

    @app.consumer("orders")
    async def ship(it: Depends[Session]) -> None: ...

    assert await refused(app) == (
        "The handler 'ship' takes Session ('it'), which needs Pool, and Session lives as long as the app, Pool as long as a message:"
        " don't give Session scope='app'."
    )


@pytest.mark.asyncio
async def test_what_is_not_there_for_a_handler_can_not_be_needed_for_it(dsn: str) -> None:
    def of_message(message: Message) -> Session:
        return Session(Pool(), message.seq)

    def of_batch(batch: Batch) -> Session:
        return Session(Pool(), len(batch))

    def of_transaction(tx: Transaction) -> Session:
        return Session(Pool())

    for provider, settings, said in (
        (of_message, {"batch": 2}, "which needs Message, and is given many messages at a time: take a Batch"),
        (of_batch, {}, "which needs Batch, and is given one message at a time: take a Message"),
        (of_transaction, {}, "which needs Transaction, and runs in none: say transactional=True"),
    ):
        app = App(dsn)
        app.provide(provider)

        @app.consumer("orders", **settings)  # type: ignore[arg-type]
        async def ship(session: Depends[Session]) -> None: ...

        assert f"The handler 'ship' takes Session ('session'), {said}" in await refused(app)


def declared_wrong(source: Any, **settings: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        App("postgresql://nowhere").provide(source, **settings)
    return str(caught.value)


def test_a_provider_that_can_not_be_one_is_refused_where_it_is_written() -> None:
    def silent():  # type: ignore[no-untyped-def]
        ...

    def untyped(pool) -> Session:  # type: ignore[no-untyped-def]
        ...

    def nothing() -> None: ...

    class Abstract(ABC):
        @abstractmethod
        def now(self) -> int: ...

    def not_an_iterator() -> Session:  # type: ignore[misc]
        yield Session(Pool())

    assert declared_wrong(silent) == (
        "The provider 'silent' can't be used: annotate it with the type that it returns, which is what it provides."
    )
    assert (
        declared_wrong(untyped) == "The provider 'untyped' can't be used: annotate pool with the types that it needs."
    )
    assert "The provider 'nothing' provides None" in declared_wrong(nothing)
    assert "Did you mean Iterable[" in declared_wrong(not_an_iterator)
    assert "scope='request' must be 'message'" in declared_wrong(Pool, scope="request")
    assert "takes a function, a class, or an object of dishka's Provider, not 7" in declared_wrong(7)
    assert "not <class" in declared_wrong(Provider)
    assert "anything of a functools.partial ('Session'): write a function" in declared_wrong(partial(Session, Pool()))
    assert "anything of an abstract class ('Abstract')" in declared_wrong(Abstract)


def test_depends_must_say_on_what() -> None:
    async def ship(pool: Depends) -> None: ...  # type: ignore[type-arg]

    with pytest.raises(ConfigurationError, match=r"Depends must say what is taken: write Depends\[Pool\]"):
        App("postgresql://nowhere").consumer("orders")(ship)


@pytest.mark.asyncio
async def test_a_type_is_provided_once_or_expressly_by_another(app: App) -> None:
    first, second = Pool(), Pool()
    seen: list[Pool] = []

    @app.provide(scope="app")
    def one() -> Pool:
        return first

    def two() -> Pool:
        return second

    with pytest.raises(
        ConfigurationError, match="Pool is provided by 'one' already, and 'two' provides it, too: leave one of them out"
    ):
        app.provide(two)
    app.provide(two, override=True)

    @app.consumer("orders")
    async def ship(pool: Depends[Pool]) -> None:
        seen.append(pool)

    await work_off(app, ("a", 1))
    assert seen == [second]


@pytest.mark.asyncio
async def test_what_is_there_anyway_can_not_be_provided(app: App) -> None:
    app.provide(Pool)

    @app.lifespan
    async def pool(app: App) -> AsyncIterator[Pool]:
        yield Pool()

    @app.consumer("orders")
    async def ship(pool: Depends[Pool]) -> None: ...

    assert await refused(app) == (
        "Pool is provided by 'Pool', and is there without that, from @app.lifespan or as the app: leave the provider out, or say override=True."
    )
    with pytest.raises(ConfigurationError, match="Message is provided by Headrace itself already"):
        app.provide(lambda: None, provides=Message)


@pytest.mark.asyncio
async def test_but_it_may_be_replaced_on_purpose(app: App) -> None:
    replacement = Pool()
    seen: list[Pool] = []

    @app.lifespan
    async def pool(app: App) -> AsyncIterator[Pool]:
        yield Pool()

    @app.consumer("orders")
    async def ship(pool: Depends[Pool]) -> None:
        seen.append(pool)

    @app.provide(scope="app", override=True)
    def fake() -> Pool:
        return replacement

    await work_off(app, ("a", 1))
    assert seen == [replacement]


# --- dishka


@pytest.mark.asyncio
async def test_a_provider_of_dishka_s_is_taken_as_it_is_and_so_is_its_mark(app: App) -> None:
    seen: list[Any] = []

    class Ours(Provider):
        @provide(scope=Scope.APP)
        def pool(self) -> Pool:
            return Pool()

        @provide(scope=Scope.REQUEST)
        async def session(self, pool: Pool, message: Message) -> Session:
            return Session(pool, message.seq)

    class Other(Provider):
        component = "other"
        pool = provide(Pool, scope=Scope.APP)

    app.provide(Ours())
    app.provide(Other())

    @app.consumer("orders")
    async def ship(
        number: int, session: FromDishka[Session], pool: Depends[Pool], other: Annotated[Pool, FromComponent("other")]
    ) -> None:
        seen.append((number, session.seq, session.pool is pool, isinstance(other, Pool), other is pool))

    await work_off(app, ("a", 1))
    assert seen == [(1, 1, True, True, False)]


@pytest.mark.asyncio
async def test_what_dishka_is_told_not_to_keep_is_made_each_time(app: App) -> None:
    seen: list[Pool] = []
    provider = Provider(scope=Scope.APP)
    provider.provide(Pool, cache=False)
    app.provide(provider)

    @app.consumer("orders")
    async def ship(one: Depends[Pool], two: Depends[Pool]) -> None:
        seen.extend((one, two))

    await work_off(app, ("a", 1), ("a", 2))
    assert len({id(pool) for pool in seen}) == 4


def test_an_app_without_dependencies_does_not_load_the_library() -> None:
    code = """
import sys
from headrace import App, Depends, Message
app = App("postgresql://nowhere")
@app.consumer("orders")
async def ship(number: int, message: Message) -> None: ...
sys.exit(any(name.split(".")[0] == "dishka" for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
