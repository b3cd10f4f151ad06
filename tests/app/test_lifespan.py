"""Lifespans: contexts that last as long as the app runs, from the database connection to the end of the drain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
import pytest

from headrace import App, ConfigurationError, Depends, store
from tests.runtime.running import WITHIN, running, work_off


@pytest.fixture
def steps() -> list[Any]:
    """The recorded events, in order."""
    return []


class Pool: ...


class Cache: ...


class MessageCache(Protocol): ...


async def nothing() -> None: ...


@pytest.mark.asyncio
async def test_a_lifespan_begins_when_the_database_is_connected_and_ends_after_the_drain(
    app: App, steps: list[Any]
) -> None:
    @app.lifespan
    async def pool(given: App) -> AsyncIterator[Pool]:
        assert given is app
        await app.publish("orders", "a", 1)
        steps.append("begins")
        yield Pool()
        steps.append("ends")
        await app.publish("orders", "a", 2)

    @app.consumer("orders")
    async def ship(number: int) -> None:
        steps.append((number, type(app.state)))

    async with app:
        async with running(app):
            await app.idle()
        assert steps == ["begins", (1, Pool), "ends"]
        assert (await store.stream(app.database, "orders")).messages == 2


@pytest.mark.asyncio
async def test_a_lifespan_begins_again_with_each_run(app: App, steps: list[Any]) -> None:
    @app.lifespan
    async def pool() -> AsyncIterator[None]:  # it need not take the app, nor yield anything
        steps.append("begins")
        yield
        steps.append("ends")

    @app.consumer("orders")
    async def ship(number: int) -> None:
        steps.append((number, app.state))
        app.stop()

    async with app:
        for number in (1, 2):
            await app.publish("orders", "a", number)
            with anyio.fail_after(WITHIN):
                await app.run(signals=False)
    assert steps == ["begins", (1, None), "ends", "begins", (2, None), "ends"]


@pytest.mark.asyncio
async def test_only_connecting_does_not_begin_a_lifespan(app: App, steps: list[Any]) -> None:
    @app.lifespan
    async def pool(app: App) -> AsyncIterator[Pool]:
        steps.append("begins")
        yield Pool()

    async with app:
        await app.publish("orders", "a", 1)
        with pytest.raises(ConfigurationError, match="The app has no state while it doesn't run"):
            _ = app.state
    assert steps == []


@pytest.mark.asyncio
async def test_lifespans_are_nested_and_a_later_one_may_use_the_state_of_an_earlier_one(
    app: App, steps: list[Any]
) -> None:
    @app.lifespan
    async def pool(app: App) -> AsyncIterator[Pool]:
        steps.append("pool")
        yield Pool()
        steps.append("pool ends")

    @app.lifespan
    @asynccontextmanager
    async def cache(app: App) -> AsyncIterator[MessageCache]:
        steps.append(("cache", type(app.state)))
        yield Cache()
        steps.append("cache ends")

    @app.lifespan
    async def banner(app: App) -> AsyncIterator[None]:
        yield

    @app.consumer("orders")
    async def ship(number: int, pool: Depends[Pool], cache: Depends[Cache], shelf: Depends[MessageCache]) -> None:
        steps.append((type(pool), shelf is cache, app.state is cache))

    await work_off(app, ("a", 1))
    assert steps == ["pool", ("cache", Pool), (Pool, True, True), "cache ends", "pool ends"]


@pytest.mark.asyncio
async def test_an_error_in_a_lifespan_ends_the_start_unchanged_and_ends_the_others(app: App, steps: list[Any]) -> None:
    @app.lifespan
    async def pool(app: App) -> AsyncIterator[Pool]:
        try:
            yield Pool()
        except OSError as error:
            steps.append(str(error))
            raise

    @app.lifespan
    async def warehouse(app: App) -> AsyncIterator[None]:
        raise OSError("the warehouse is closed")
        yield

    app.consumer("orders")(nothing)
    for _ in range(2):  # a failed start leaves nothing behind
        with pytest.raises(OSError, match=r"^the warehouse is closed$"):
            async with running(app):
                pass
        with pytest.raises(OSError, match=r"^the warehouse is closed$"):
            await app.run(signals=False)
        with pytest.raises(ConfigurationError, match="not connected"):
            _ = app.database
    assert steps == ["the warehouse is closed"] * 4


@pytest.mark.asyncio
async def test_an_error_at_the_end_of_a_lifespan_is_raised_after_the_drain(app: App) -> None:
    seen: list[int] = []

    @app.lifespan
    async def pool(app: App) -> AsyncIterator[Pool]:
        yield Pool()
        raise OSError("it can't be closed")

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.append(number)

    with pytest.raises(OSError, match=r"^it can't be closed$"):
        await work_off(app, ("a", 1))
    assert seen == [1]


@pytest.mark.asyncio
async def test_a_lifespan_may_keep_a_task_group(app: App) -> None:
    seen: list[int] = []

    @app.lifespan
    async def background(app: App) -> AsyncIterator[anyio.abc.TaskGroup]:
        async with anyio.create_task_group() as group:
            yield group

    @app.consumer("orders")
    async def ship(number: int) -> None:
        app.state.start_soon(note, number)

    async def note(number: int) -> None:
        seen.append(number)

    await work_off(app, ("a", 1))
    assert seen == [1]


@pytest.mark.asyncio
async def test_an_app_that_is_about_to_start_can_not_be_started_again(app: App) -> None:
    @app.lifespan
    async def pool(app: App) -> AsyncIterator[None]:
        with pytest.raises(ConfigurationError, match="The app is already running in this process"):
            async with app.running():
                pass
        with pytest.raises(ConfigurationError, match="The app is already running in this process"):
            await app.preflight()
        yield

    async with running(app):
        pass


@pytest.mark.asyncio
async def test_two_lifespans_can_not_yield_the_same_type(app: App) -> None:
    @app.lifespan
    async def one(app: App) -> AsyncIterator[Pool]:
        yield Pool()

    @app.lifespan
    async def two(app: App) -> AsyncIterator[Pool]:
        yield Pool()

    with pytest.raises(ConfigurationError, match="The lifespan 'two' yields a Pool, as another one does"):
        await app.preflight()


@pytest.mark.asyncio
async def test_a_function_that_only_returns_is_refused_and_must_yield(app: App) -> None:
    app.lifespan(lambda app: Pool())
    with pytest.raises(
        ConfigurationError, match=r"returned a Pool, which is not an async context manager\. Write it with `yield`"
    ):
        await app.preflight()


def test_an_invalid_lifespan_is_refused_where_it_is_declared() -> None:
    async def coroutine(app: App) -> Pool:
        return Pool()

    def plain(app: App) -> Iterator[Pool]:
        yield Pool()

    async def greedy(app: App, pool: Pool) -> AsyncIterator[Pool]:
        yield pool

    app = App("postgresql://nowhere")
    for wrong in (coroutine, plain):
        with pytest.raises(
            ConfigurationError, match=rf"The lifespan '{wrong.__name__}' is not an async generator function"
        ):
            app.lifespan(wrong)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="The lifespan 'greedy' takes more than the app"):
        app.lifespan(greedy)
    with pytest.raises(ConfigurationError, match="The lifespan 'int' is not an async generator function"):
        app.lifespan(7)  # type: ignore[type-var]
