"""Cancellations that are no scope's: one that a handler leaves in its task, or that comes when the handler has ended,
harms neither its message nor another one, and no actor ends by it.

A timeout of an old library may leave one, and code that cancels a job by its task may come a moment too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import asyncpg
import pytest

from headrace import App, ConfigurationError, Message, Transaction, store
from headrace.app.background import BackgroundWorkDied
from headrace.runtime.isolation import own_task
from tests.runtime.running import WITHIN, Gate, Seen, consumer, dead_letters, running, work_off

pytestmark = pytest.mark.asyncio

BACKLOG = [(f"k{number % 3}", number) for number in range(12)]


def declare(app: App, kind: str, leave: Callable[[int], None]) -> None:
    """Declare the consumer `ship` of this kind. Its handler calls `leave` with each message, and returns or raises."""
    options: dict[str, Any] = {"name": "ship", "concurrency": 1, "backoff": 0}

    if kind == "plain":

        @app.consumer("orders", **options)
        async def ship(number: int) -> None:
            leave(number)

    elif kind in ("message", "timeout"):

        @app.consumer("orders", **options, **({"timeout": "1h"} if kind == "timeout" else {}))
        async def ship_message(number: int, message: Message) -> None:
            leave(number)

    elif kind == "wide":

        @app.consumer("orders", **options, ordered=False, key_concurrency=1)
        async def ship_without_order(number: int) -> None:
            leave(number)
            await anyio.lowlevel.checkpoint()

    elif kind == "waits":

        @app.consumer("orders", **options)
        async def ship_slowly(number: int) -> None:
            leave(number)
            await anyio.lowlevel.checkpoint()
            await anyio.sleep(0.001)

    elif kind == "raises":

        @app.consumer("orders", **options, max_deliver=2)
        async def ship_in_vain(number: int, message: Message) -> None:
            leave(number)
            if message.attempt == 1:
                raise RuntimeError("once more")

    elif kind == "transactional":

        @app.consumer("orders", **options, transactional=True)
        async def ship_in_transaction(number: int, tx: Transaction) -> None:
            await tx.execute("insert into effects values ($1)", number)
            leave(number)

    elif kind == "publishes":

        @app.consumer("orders", **options, publishes="copies")
        async def copy(number: int) -> tuple[str, int]:
            leave(number)
            return "k", number

    else:

        @app.consumer("orders", **options, batch=4, group_by_key=kind == "key")
        async def ship_many(numbers: list[int]) -> None:
            for number in numbers:
                leave(number)


KINDS = ["plain", "message", "timeout", "raises", "transactional", "publishes", "batch", "key"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancellation_that_a_handler_leaves_reaches_nothing(
    app: App, database: store.Database, seen: Seen, kind: str
) -> None:
    await database.fetch("create table effects (number int)")
    await store.create_stream(database, "copies")

    def leave(number: int) -> None:
        seen.note(number)
        if number % 3 == 0:
            own_task().cancel()

    declare(app, kind, leave)
    async with running(app):
        for part in (BACKLOG[:6], BACKLOG[6:]):  # the actor waits for more in between
            await app.publish_many("orders", part)
            await app.idle()
    times = 2 if kind == "raises" else 1
    assert sorted(seen.notes) == sorted([number for _, number in BACKLOG] * times)
    if kind == "transactional":
        effects = await database.fetch("select number from effects order by 1")
        assert [row["number"] for row in effects] == [number for _, number in BACKLOG]
    if kind == "publishes":
        assert (await store.stream(database, "copies")).last_seq == len(BACKLOG)


async def test_a_cancellation_that_comes_after_the_handler_ends_no_actor(app: App, seen: Seen) -> None:
    tasks = set()

    @app.consumer("orders", concurrency=2)
    async def ship(number: int) -> None:
        tasks.add(own_task())
        seen.note(number)

    async with running(app):
        for key, number in BACKLOG:
            await app.publish("orders", key, number)
            await app.idle()
            for task in tasks:
                task.cancel()
    assert seen.notes == [number for _, number in BACKLOG]


async def test_a_cancellation_during_the_handler_fails_its_attempt(app: App, seen: Seen) -> None:
    gate = Gate()

    @app.consumer("orders", concurrency=1, backoff=0)
    async def ship(number: int, message: Message) -> None:
        seen.note((number, message.attempt))
        if message.attempt == 1:
            tasks.append(own_task())
            await gate.wait()

    tasks: list[asyncio.Task[Any]] = []
    async with running(app):
        await app.publish("orders", "k", 1)
        await gate.until(1)
        tasks[0].cancel()
        await app.idle()
    assert seen.notes == [(1, 1), (1, 2)]


async def test_a_cancellation_during_the_look_at_a_transaction_changes_nothing(
    app: App, dsn: str, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    status = store.transaction_status

    async def disturbed(*args: Any, **options: Any) -> Any:
        looks.append(args)
        if len(looks) == 1:
            own_task().cancel()
            await anyio.lowlevel.checkpoint()
        return await status(*args, **options)

    monkeypatch.setattr(store, "transaction_status", disturbed)
    connection = await asyncpg.connect(dsn)

    @app.consumer("orders", concurrency=1)
    async def ship(number: int, message: Message) -> None:
        seen.note(number)
        async with connection.transaction():
            await message.ack(tx=connection)

    await work_off(app, ("k", 1), ("k", 2))
    await connection.close()
    assert (seen.notes, len(looks)) == ([1, 2], 3)


async def test_a_hook_that_is_cancelled_does_not_keep_the_next_ones(app: App, seen: Seen) -> None:
    @app.on_dead_letter
    async def alert(message: Message, error: BaseException) -> None:
        seen.note(message.data)
        if message.data % 3 == 0:
            own_task().cancel()
        if message.data % 3 == 1:
            raise asyncio.CancelledError

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int) -> None:
        raise RuntimeError("never")

    async with running(app):
        for part in (BACKLOG[:6], BACKLOG[6:]):
            await app.publish_many("orders", part)
            await app.idle()
            await seen.until(part[-1][1] + 1)
    assert sorted(seen.notes) == [number for _, number in BACKLOG]


async def test_a_startup_check_that_is_cancelled_has_failed(app: App) -> None:
    @app.check
    async def warehouse() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ConfigurationError, match="warehouse: CancelledError"):
        async with running(app):
            pass


async def test_who_runs_an_app_learns_that_its_tasks_were_cancelled(app: App, seen: Seen) -> None:
    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)

    async def cancelled() -> None:
        others = asyncio.all_tasks()
        async with running(app, within=WITHIN):
            await app.publish("orders", "k", 1)
            await app.idle()
            for task in asyncio.all_tasks() - others:
                task.cancel()
            await anyio.sleep_forever()

    with pytest.raises(BackgroundWorkDied, match="other code in this process has cancelled its task"):
        await cancelled()
    await work_off(app, ("k", 2))
    assert seen.notes == [1, 2]


def leave_open() -> None:
    """Do what an async generator does that holds a timeout or a task group, and is not closed."""
    scope = anyio.CancelScope()
    scope.__enter__()
    scope.cancel()


@pytest.mark.parametrize("kind", ["plain", "wide", "message", "timeout", "waits", "transactional", "batch", "key"])
async def test_a_scope_that_a_handler_leaves_open_stops_no_consumer(
    app: App, database: store.Database, seen: Seen, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    await database.fetch("create table effects (number int)")
    left = []

    def leave(number: int) -> None:
        seen.note(number)
        if number == 3 and not left:
            left.append(number)
            leave_open()

    declare(app, kind, leave)
    async with running(app):
        for part in (BACKLOG[:6], BACKLOG[6:]):
            await app.publish_many("orders", part)
            await app.idle()
        info = await consumer(app, "ship")
    assert (info.lag, info.in_flight, info.parked, info.dead_letters) == (0, 0, 0, 0)
    assert set(seen.notes) == {number for _, number in BACKLOG}
    for key in range(3):
        of_key = [number for number in dict.fromkeys(seen.notes) if number % 3 == key]
        assert of_key == sorted(of_key)
    if kind == "transactional":
        effects = await database.fetch("select number from effects order by 1")
        assert [row["number"] for row in effects] == [number for _, number in BACKLOG]
    assert "scope left open by a handler" in caplog.text


async def test_a_message_whose_handler_always_leaves_a_scope_open_becomes_a_dead_letter(app: App, seen: Seen) -> None:
    @app.consumer("orders", concurrency=1, backoff=0, max_deliver=3)
    async def ship(number: int) -> None:
        seen.note(number)
        if number == 3:
            leave_open()
            await anyio.lowlevel.checkpoint()

    await work_off(app, *BACKLOG)
    async with app:
        assert [letter.seq for letter in await dead_letters(app, "ship")] == [4]
    assert seen.notes.count(3) == 3
    assert len(seen.notes) == len(BACKLOG) + 2


async def test_a_hook_that_leaves_a_scope_open_does_not_keep_the_next_ones(app: App, seen: Seen) -> None:
    @app.on_dead_letter
    async def alert(message: Message, error: BaseException) -> None:
        seen.note(message.data)
        leave_open()

    @app.consumer("orders", max_deliver=1)
    async def ship(number: int) -> None:
        raise RuntimeError("never")

    async with running(app):
        await app.publish_many("orders", BACKLOG)
        await app.idle()
        await seen.until(len(BACKLOG))


@pytest.mark.parametrize("how", ["a scope left open", "cancelled"])
async def test_a_function_of_a_schedule_spoils_no_other_schedule(app: App, seen: Seen, how: str) -> None:
    async def spoilt(due: Any) -> int:
        if how == "cancelled":
            own_task().cancel()
        else:
            leave_open()
        return 1

    app.every("1s", "orders", name="spoilt", data=spoilt)
    app.every("1s", "orders", name="sound", data=2)

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        with anyio.fail_after(WITHIN):
            while 2 not in seen.notes:
                await seen.until(len(seen.notes) + 1)
