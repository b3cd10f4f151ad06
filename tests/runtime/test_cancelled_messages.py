"""Messages that an operator cancels while they are at work: their handlers are stopped, and nothing else is."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from headrace import App, Message
from tests.runtime import worker_functions
from tests.runtime.running import Seen, dead_letters, eventually, parked, running

pytestmark = pytest.mark.asyncio


async def cancel(app: App, *seqs: int) -> int:
    """Cancel messages that are at work, and have the process look. Returns how many are at work."""
    found = await app.admin.cancel("orders", "ship", seqs=seqs)
    await app._service._shared.history_watch.look(app.database)
    return found.stopping


@asynccontextmanager
async def at_work(app: App, seen: Seen, *keys: str, until: int = 1) -> AsyncIterator[None]:
    """Run the app until its handlers have noted so many messages."""
    async with running(app):
        await app.publish_many("orders", [(key, n) for n, key in enumerate(keys, 1)])
        await seen.until(until)
        yield


def hanging(seen: Seen, *numbers: int) -> Callable[..., Any]:
    """A handler that hangs with some messages, and needs a moment to end."""

    async def ship(number: int) -> None:
        seen.note(number)
        if number in numbers:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.01)
                seen.note(-number)

    return ship


@pytest.mark.parametrize("options", [{}, {"timeout": "1h"}, {"transactional": True}, {"concurrency": 1}])
async def test_the_next_message_of_a_key_starts_only_after_a_cancelled_handler_has_ended(
    app: App, options: dict[str, Any]
) -> None:
    seen = Seen()
    hang = hanging(seen, 1)

    @app.consumer("orders", **options)
    async def ship(number: int, message: Message) -> None:
        await hang(number)

    async with at_work(app, seen, "a", "a", "a"):
        assert await cancel(app, 1) == 1
        await app.idle()
        assert seen.notes == [1, -1, 2, 3]
        assert await dead_letters(app, "ship") == []
        statistics = app.statistics()["consumers"]["orders:ship"]
        assert (statistics["cancelled"], statistics["acked"], statistics["failed"]) == (1, 2, 0)


async def test_a_handler_that_takes_the_payload_alone_is_stopped(app: App) -> None:
    seen = Seen()
    app.consumer("orders", name="ship", concurrency=1)(hanging(seen, 1, 3))
    async with at_work(app, seen, "a", "b", "c", "d"):
        assert await cancel(app, 1) == 1
        await seen.until(4)
        assert await cancel(app, 3) == 1
        await app.idle()
        assert seen.notes == [1, -1, 2, 3, -3, 4]
        assert app.statistics()["consumers"]["orders:ship"]["actors"] == 1


async def test_cancelling_one_message_stops_no_other_handler(app: App) -> None:
    seen, go_on = Seen(), anyio.Event()

    @app.consumer("orders", concurrency=3)
    async def ship(number: int, message: Message) -> None:
        if number == 3:
            await message.ack()
        seen.note(number)
        await go_on.wait()
        seen.note(number * 10)

    async with at_work(app, seen, "a", "b", "c", until=3):
        assert await cancel(app, 2) == 1
        go_on.set()
        await app.idle()
        assert sorted(seen.notes) == [1, 2, 3, 10, 30]


async def test_a_leased_message_that_has_not_started_is_not_handled(app: App) -> None:
    seen, go_on = Seen(), anyio.Event()

    @app.consumer("orders", concurrency=1)
    async def ship(number: int) -> None:
        seen.note(number)
        await go_on.wait()

    async with at_work(app, seen, "a", "a", "b"):
        assert await cancel(app, 2, 3) == 2
        go_on.set()
        await app.idle()
        assert seen.notes == [1]
        assert app.statistics()["consumers"]["orders:ship"]["cancelled"] == 2


async def test_a_transaction_of_a_cancelled_handler_is_rolled_back(app: App) -> None:
    seen = Seen()
    app.stream("shipments")

    @app.consumer("orders", transactional=True)
    async def ship(number: int, message: Message) -> None:
        await message.publish("shipments", "a", number)
        seen.note(number)
        if number == 1:
            await anyio.sleep_forever()

    async with at_work(app, seen, "a", "b", until=2):
        assert await cancel(app, 1) == 1
        await app.idle()
        assert [message.data for message in await app.admin.messages("shipments")] == [2]


async def test_a_thread_runs_to_its_end_and_can_look(app: App) -> None:
    seen, looked = Seen(), threading.Event()

    @app.consumer("orders", runner="thread")
    def ship(number: int, message: Message) -> None:
        anyio.from_thread.run_sync(seen.note, number)
        while number == 1 and not message.cancelled:
            looked.wait(0.01)
        anyio.from_thread.run_sync(seen.note, number * 10)

    async with at_work(app, seen, "a", "a"):
        assert await cancel(app, 1) == 1
        await app.idle()
        assert seen.notes == [1, 10, 2, 20]


async def test_the_process_of_a_cancelled_handler_is_killed(app: App, tmp_path: Path) -> None:
    async def started() -> bool:
        return (tmp_path / "1").exists()

    app.consumer("orders", name="ship", runner="process", concurrency=1)(worker_functions.hang_with_one)
    async with running(app):
        await app.publish_many("orders", [("a", {"numbers": [n], "into": str(tmp_path / str(n))}) for n in (1, 2)])
        await eventually(started)
        assert await cancel(app, 1) == 1
        await app.idle()
        assert app.statistics()["consumers"]["orders:ship"]["acked"] == 1
        assert app.statistics()["consumers"]["orders:ship"]["cancelled"] == 1


async def test_a_cancelled_message_of_a_running_batch_ends_with_the_batch(app: App) -> None:
    seen, go_on = Seen(), anyio.Event()

    @app.consumer("orders", batch=3, concurrency=1, backoff=0)
    async def ship(numbers: list[int]) -> None:
        seen.note(numbers)
        if len(seen.notes) == 1:
            await go_on.wait()
            raise ValueError

    async with at_work(app, seen, "a", "b", "c"):
        assert await cancel(app, 2) == 1
        go_on.set()
        await app.idle()
        assert seen.notes[0] == [1, 2, 3]
        assert sorted(number for numbers in seen.notes[1:] for number in numbers) == [1, 3]


async def test_a_batch_is_stopped_when_all_of_it_is_cancelled(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", batch=2, concurrency=1)
    async def ship(numbers: list[int]) -> None:
        seen.note(numbers)
        if 1 in numbers:
            await anyio.sleep_forever()

    async with at_work(app, seen, "a", "b", "c", "d"):
        assert await cancel(app, 1, 2) == 2
        await app.idle()
        assert seen.notes == [[1, 2], [3, 4]]
        assert app.statistics()["consumers"]["orders:ship"]["cancelled"] == 2


async def test_a_handler_that_is_done_before_it_is_stopped_has_acked(app: App) -> None:
    seen, go_on = Seen(), anyio.Event()

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)
        await go_on.wait()

    async with at_work(app, seen, "a"):
        assert (await app.admin.cancel("orders", "ship", seqs=[1])).stopping == 1
        go_on.set()
        await app.idle()
        assert app.statistics()["consumers"]["orders:ship"]["acked"] == 1


async def test_a_handler_that_fails_when_it_is_stopped_is_not_tried_again(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", backoff="1h")
    async def ship(number: int) -> None:
        seen.note(number)
        try:
            await anyio.sleep(0 if number > 1 else 3600)
        except anyio.get_cancelled_exc_class():
            raise ValueError from None

    async with at_work(app, seen, "a", "a"):
        assert await cancel(app, 1) == 1
        await app.idle()
        assert seen.notes == [1, 2]
        assert await parked(app) == []


async def test_a_process_hears_of_a_cancellation_by_itself(app: App) -> None:
    seen = Seen()
    app.consumer("orders", name="ship")(hanging(seen, 1))
    async with at_work(app, seen, "a", "a"):
        await app.admin.cancel("orders", "ship", seqs=[1])
        assert await seen.until(3) == [1, -1, 2]
        await app.idle()
