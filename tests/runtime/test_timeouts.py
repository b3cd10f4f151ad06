"""Handler timeouts."""

from __future__ import annotations

import logging
import threading

import anyio
import pytest

from headrace import App, Message
from headrace.runtime.execution.single_executor import STRETCH
from tests.runtime.running import Seen, dead_letters, eventually, numbered, parked, running, work_off


@pytest.mark.asyncio
async def test_a_handler_that_takes_too_long_is_cancelled_and_its_message_comes_again(app: App) -> None:
    seen: list[tuple[int, int, str]] = []

    @app.consumer("orders", timeout="50ms", backoff=0)
    async def ship(number: int, message: Message) -> None:
        try:
            if (number, message.attempt) == (1, 1):
                await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            seen.append((number, message.attempt, "cancelled"))
            raise
        seen.append((number, message.attempt, "done"))

    await work_off(app, *numbered("aa"))
    assert seen == [(1, 1, "cancelled"), (1, 2, "done"), (2, 1, "done")]


@pytest.mark.asyncio
async def test_a_timeout_is_a_failure_like_any_other_and_is_reported_as_a_timeout(app: App) -> None:
    @app.consumer("orders", timeout=0.05, max_deliver=1)
    async def ship() -> None:
        await anyio.sleep_forever()

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        (letter,) = await dead_letters(app, "ship")
    assert (letter.reason, letter.attempts) == ("exhausted", 1)
    assert letter.error == "The handler took longer than its timeout of 0.05 s."


@pytest.mark.asyncio
async def test_a_plain_function_is_not_interrupted_but_counts_as_failed_when_it_returns(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    noticed = threading.Event()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "event", None) == "handler timed out":
                noticed.set()

    @app.consumer("orders", timeout="500ms", max_deliver=1)
    def ship(number: int) -> None:
        if number == 1:
            assert noticed.wait(20)

    ear = Ear()
    logging.getLogger("headrace").addHandler(ear)
    try:
        async with running(app):
            await app.publish_many("orders", numbered("aa"))
            await app.idle()
            (letter,) = await dead_letters(app, "ship")
    finally:
        logging.getLogger("headrace").removeHandler(ear)
    assert letter.seq == 1
    assert letter.error == (
        "The handler took longer than its timeout of 0.5 s (a sync handler can't be interrupted; this was noticed when it"
        " returned)."
    )


@pytest.mark.asyncio
async def test_a_timeout_after_the_handler_s_own_ack_stops_it_and_loses_nothing_behind_it(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", timeout="50ms", concurrency=1)
    async def ship(number: int, message: Message) -> None:
        seen.note((number, message.attempt))
        if number <= 2:
            await message.ack()
            await anyio.sleep_forever()

    await work_off(app, *numbered("aaaa"))
    assert seen.notes == [(1, 1), (2, 1), (3, 1), (4, 1)]


@pytest.mark.asyncio
async def test_a_handler_that_caught_its_cancellation_has_failed_and_affects_no_later_message(app: App) -> None:
    seen: list[tuple[int, int]] = []

    @app.consumer("orders", timeout="300ms", concurrency=1, backoff=0)
    async def ship(number: int, message: Message) -> None:
        seen.append((number, message.attempt))
        if number in (2, STRETCH) and message.attempt == 1:
            if number == 2:
                await message.ack()
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                return
        await anyio.lowlevel.checkpoint()

    await work_off(app, *numbered("a" * (STRETCH + 10)))
    firsts = [number for number, attempt in seen if attempt == 1]
    assert firsts == list(range(1, STRETCH + 11))
    assert [(number, attempt) for number, attempt in seen if attempt > 1] == [(STRETCH, 2)]


@pytest.mark.asyncio
async def test_a_timeout_of_one_stops_no_other(app: App) -> None:
    """One handler hangs. Another of the same age handles message after message, each with its own timeout."""
    stopped = anyio.Event()
    attempts: list[int] = []

    @app.consumer("orders", timeout="1s", backoff="1h", concurrency=2)
    async def ship(number: int, message: Message) -> None:
        if number == 1:
            try:
                await anyio.sleep_forever()
            finally:
                stopped.set()
        attempts.append(message.attempt)
        if not stopped.is_set():
            await app.publish("orders", "b", number + 1)

    async with running(app):
        await app.publish_many("orders", [("a", 1), ("b", 2)])
        await stopped.wait()
        (row,) = await eventually(lambda: parked(app))
        assert (row["seq"], row["attempts"]) == (1, 1)
    assert len(attempts) > 1
    assert set(attempts) == {1}
