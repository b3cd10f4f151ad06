"""Draining: the outcome of messages when the app is stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from headrace import App, Message, StoreUnavailable, store
from headrace.runtime.pipeline.timings import Timings
from tests.runtime.running import WITHIN, Gate, consumer, eventually, numbered, parked, running
from tests.support.logs import logged


async def left(app: App) -> tuple[int, int, dict[int, int]]:
    """The messages in flight, the dead letters, and the attempts of waiting messages by seq."""
    info = await consumer(app, "ship")
    return info.in_flight, info.dead_letters, {row["seq"]: row["attempts"] for row in await parked(app)}


@asynccontextmanager
async def at_work(app: App, keys: str, ready: Any) -> AsyncIterator[None]:
    """Run the app on published messages inside the block. The block ends when the app has stopped."""
    async with app:
        await store.create_stream(app.database, "orders")
        await app.publish_many("orders", numbered(keys))
        with anyio.fail_after(WITHIN):
            async with anyio.create_task_group() as group:
                group.start_soon(app.run)
                await ready()
                yield


@pytest.mark.asyncio
async def test_running_handlers_finish_and_messages_that_never_started_are_released_uncounted(dsn: str) -> None:
    app, gate = App(dsn), Gate()

    @app.consumer("orders", concurrency=2)
    async def ship() -> None:
        await gate.wait()

    async with app:
        async with at_work(app, "aabbcd", lambda: gate.until(2)):
            await eventually(lambda: leased(app, 6))
            app.stop()
            await eventually(lambda: all_released(app, 4))
            assert gate.inside == 2
            gate.open()
        assert await left(app) == (0, 0, {2: 0, 4: 0, 5: 0, 6: 0})


async def leased(app: App, count: int) -> bool:
    await app.database.fetchval("select 1")
    return bool(app.statistics()["consumers"]["orders:ship"]["leased"] == count)


async def all_released(app: App, count: int) -> bool:
    return len(await parked(app)) == count


@pytest.mark.asyncio
async def test_released_messages_are_handled_by_the_next_process_in_order(dsn: str) -> None:
    seen: list[tuple[int, int]] = []
    gate = Gate()

    def make() -> App:
        app = App(dsn)

        @app.consumer("orders", concurrency=1)
        async def ship(number: int, message: Message) -> None:
            seen.append((number, message.attempt))
            await gate.wait()

        return app

    async with at_work(first := make(), "aaaa", lambda: gate.until(1)):
        await eventually(lambda: leased(first, 3))
        first.stop()
        await eventually(lambda: all_released(first, 2))
        gate.open()
    async with running(second := make()):
        await second.idle()
    assert seen == [(1, 1), (2, 1), (3, 1), (4, 1)]


@pytest.mark.asyncio
async def test_a_second_stop_stops_the_handlers_and_releases_their_messages(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, gate = App(dsn), Gate()

    @app.consumer("orders", concurrency=2)
    async def ship() -> None:
        await gate.wait()

    async with app:
        async with at_work(app, "aabc", lambda: gate.until(2)):
            app.stop()
            app.stop()
        assert gate.inside == 0
        assert await left(app) == (0, 0, {1: 0, 2: 0, 3: 0, 4: 0})
    (record,) = logged(caplog, "handlers stopped", consumer="ship", handlers=2)
    assert not hasattr(record, "shutdown_timeout")


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["plain", "message", "timeout", "batch", "transactional", "publishes"])
async def test_a_handler_that_swallows_its_stop_has_not_finished(dsn: str, kind: str) -> None:
    """A bare `except:` must not turn half of its work into an ack."""
    app, gate = App(dsn), Gate()

    async def half() -> None:
        with suppress(BaseException):
            await gate.wait()

    if kind == "plain":

        @app.consumer("orders", name="ship", concurrency=2)
        async def ship(number: int) -> None:
            await half()

    elif kind == "batch":

        @app.consumer("orders", name="ship", concurrency=1, batch=2)
        async def ship_many(numbers: list[int]) -> None:
            await half()

    else:
        options: dict[str, Any] = {
            "message": {},
            "timeout": {"timeout": "1h"},
            "transactional": {"transactional": True},
            "publishes": {"publishes": "copies"},
        }[kind]

        @app.consumer("orders", name="ship", concurrency=2, **options)
        async def ship_message(number: int, message: Message) -> Any:
            await half()
            return ("k", 1) if kind == "publishes" else None

    async with app:
        await store.create_stream(app.database, "copies")
        async with at_work(app, "ab", lambda: gate.until(1 if kind == "batch" else 2)):
            app.stop()
            app.stop()
        assert await left(app) == (0, 0, {1: 0, 2: 0})
        assert (await store.stream(app.database, "copies")).messages == 0


@pytest.mark.asyncio
async def test_a_handler_that_finishes_behind_a_shield_is_not_stopped(dsn: str) -> None:
    app, gate = App(dsn), Gate()

    @app.consumer("orders", concurrency=1)
    async def ship(number: int) -> None:
        with anyio.CancelScope(shield=True):
            await gate.wait()

    async with app:
        async with at_work(app, "a", lambda: gate.until(1)):
            app.stop()
            app.stop()
            asyncio.get_running_loop().call_soon(gate.open)
        assert await left(app) == (0, 0, {})


@pytest.mark.asyncio
async def test_handlers_have_the_shutdown_timeout_to_finish(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    app, gate = App(dsn, shutdown_timeout="50ms"), Gate()

    @app.consumer("orders", concurrency=1)
    async def ship(number: int, message: Message) -> None:
        await gate.wait()

    async with app:
        async with at_work(app, "ab", lambda: gate.until(1)):
            app.stop()
        assert await left(app) == (0, 0, {1: 0, 2: 0})
    assert logged(caplog, "handlers stopped", consumer="ship", handlers=1, shutdown_timeout=0.05)


@pytest.mark.asyncio
async def test_a_message_that_its_handler_has_acked_is_not_released(dsn: str) -> None:
    app, gate = App(dsn), Gate()

    @app.consumer("orders", concurrency=1)
    async def ship(message: Message) -> None:
        await message.ack()
        await gate.wait()

    async with app:
        async with at_work(app, "aa", lambda: gate.until(1)):
            app.stop()
            app.stop()
        assert await left(app) == (0, 0, {2: 0})


@pytest.mark.asyncio
async def test_a_plain_function_is_waited_for_and_its_outcome_counts(dsn: str) -> None:
    app = App(dsn)
    app._timings = Timings(last_settle=WITHIN)
    inside, go = anyio.Event(), threading.Event()

    @app.consumer("orders", concurrency=1)
    def ship() -> None:
        anyio.from_thread.run_sync(inside.set)
        assert go.wait(WITHIN)

    async with app:
        async with at_work(app, "aa", inside.wait):
            app.stop()
            app.stop()
            await eventually(lambda: all_released(app, 1))
            go.set()
        assert await left(app) == (0, 0, {2: 0})


@pytest.mark.asyncio
async def test_a_handler_that_fails_during_the_drain_has_failed(dsn: str) -> None:
    app, gate = App(dsn), Gate()

    @app.consumer("orders", concurrency=1, backoff="1h")
    async def ship() -> None:
        await gate.wait()
        raise ValueError

    async with app:
        async with at_work(app, "ab", lambda: gate.until(1)):
            app.stop()
            await eventually(lambda: all_released(app, 1))
            gate.open()
        assert await left(app) == (0, 0, {1: 1, 2: 0})


@pytest.mark.asyncio
async def test_an_app_that_is_stopped_before_it_has_begun_ends(dsn: str) -> None:
    app = App(dsn)

    @app.consumer("orders")
    async def ship() -> None: ...

    async with running(app):
        pass
    async with running(app):
        app.stop()
        app.stop()
    async with running(app):
        app.stop()
        await app.idle()  # no more work will be done, so this does not wait
    assert app.statistics() == {}


@pytest.mark.asyncio
async def test_the_end_of_the_block_drains(dsn: str) -> None:
    app, gate = App(dsn), Gate()

    @app.consumer("orders", concurrency=1)
    async def ship() -> None:
        await gate.wait()

    async with app:
        async with anyio.create_task_group() as group, running(app):
            await app.publish_many("orders", numbered("ab"))
            await gate.until(1)

            async def open_when_released() -> None:
                await eventually(lambda: all_released(app, 1))
                gate.open()

            group.start_soon(open_when_released)
        assert await left(app) == (0, 0, {2: 0})


@pytest.mark.asyncio
async def test_a_drain_waits_a_limited_time_for_a_database_that_is_away(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app, gate = App(dsn), Gate()
    app._timings = Timings(last_settle=0.1)

    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("away")

    @app.consumer("orders", concurrency=1)
    async def ship() -> None:
        await gate.wait()

    async with app:
        async with at_work(app, "a", lambda: gate.until(1)):
            monkeypatch.setattr(store, "settle", away)
            app.stop()
            gate.open()
        assert (await left(app))[0] == 1
    assert logged(caplog, "messages not settled", consumer="ship", messages=1)
