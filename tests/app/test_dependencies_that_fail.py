"""Dependencies that fail: during creation, or during teardown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest

from headrace import App, ConfigurationError, Depends, Message, Reject, Retry
from headrace.runtime.pipeline.timings import Timings
from tests.app.providing import Pool, Session
from tests.runtime.running import consumer, dead_letters, running, work_off
from tests.support.logs import logged


@pytest.fixture
def app(dsn: str) -> App:
    return App(dsn)


@pytest.fixture
def steps() -> list[Any]:
    """The recorded events, in order."""
    return []


# --- failures


@pytest.mark.asyncio
async def test_a_dependency_that_fails_is_a_failed_attempt_and_the_others_are_torn_down(
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
async def test_a_generator_receives_the_failures_that_the_handler_raises_or_returns(
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
            return  # this has no effect, because the handler has failed
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
    # Python turns a StopIteration that leaves a coroutine into a RuntimeError.
    assert sorted(map(str, steps)) == sorted(map(str, ["fine", ValueError, Retry, RuntimeError, Reject]))


@pytest.mark.asyncio
async def test_a_teardown_that_fails_before_the_ack_fails_the_attempt(app: App, steps: list[Any]) -> None:
    """Otherwise a message would be lost when its session commits there and fails."""

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
async def test_several_teardowns_that_fail_are_reported_together(app: App) -> None:
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
async def test_a_teardown_that_fails_undoes_no_ack_and_is_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
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
    assert [vars(record)["error"] for record in logged(caplog, "teardown of a dependency failed")] == [
        "OSError: the session",
        "OSError: the pool",
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
    assert logged(caplog, "teardown of a dependency failed", error="OSError: the rollback failed")


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
async def test_a_teardown_that_is_cancelled_does_not_stop_the_others(app: App, steps: list[Any]) -> None:
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
async def test_a_teardown_after_a_failure_has_a_limit(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app._timings = Timings(teardown=0.05)

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
    error = "TimeoutError: it took longer than 0.05 s, and was left off"
    assert logged(caplog, "teardown of a dependency failed", error=error)


@pytest.mark.asyncio
async def test_a_dependency_of_the_app_that_fails_ends_the_start_with_its_error(app: App, steps: list[Any]) -> None:
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
