"""Outcomes that arrive in a group of exceptions, as from a task group in the handler."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from typing import Any, NewType

import anyio
import pytest

from headrace import App, Depends, LeaseLost, Message, Reject, Retry, Snooze, store
from headrace.model.outcomes import Release, deciding
from headrace.testing import Harness
from tests.runtime import worker_functions
from tests.runtime.running import dead_letters, eventually, numbered, parked, running

LOST, REJECTED, BUG = LeaseLost("lost"), Reject("no"), ValueError("a bug")
SOON, LATER, BACKOFF = Retry(after=1), Retry(after=60), Retry()
RELEASED, SNOOZED, SNOOZED_LONGER = Release("none left"), Snooze(60), Snooze(3600)


async def fails_with(error: Exception) -> None:
    """Raise an exception from a task of a task group, in which others wait."""
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(60))
        group.create_task(_raise(error))


async def fails_in_anyio_with(error: Exception) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        group.start_soon(_raise, error)


async def _raise(error: Exception) -> None:
    raise error


# --- which one decides


@pytest.mark.parametrize(
    ("raised", "decides"),
    [
        ([REJECTED], REJECTED),
        ([SNOOZED], SNOOZED),
        ([BUG, SOON, REJECTED, LOST], LOST),
        ([SNOOZED, BUG, REJECTED], REJECTED),
        ([BUG, SOON], None),
        ([SNOOZED, BUG], None),
        ([SNOOZED, RELEASED, SOON], SOON),
        ([SOON, LATER, BACKOFF], LATER),
        ([BACKOFF], BACKOFF),
        ([SNOOZED, RELEASED], RELEASED),
        ([SNOOZED, SNOOZED_LONGER], SNOOZED_LONGER),
        ([asyncio.CancelledError(), SNOOZED], SNOOZED),
        ([asyncio.CancelledError()], None),
        ([KeyError("one"), BUG], None),
    ],
)
def test_the_outcome_that_decides_a_group(raised: list[BaseException], decides: BaseException | None) -> None:
    group = BaseExceptionGroup("tasks", raised)
    assert deciding(group) is (decides or group)
    nested = BaseExceptionGroup("outer", [BaseExceptionGroup("inner", raised)])
    assert deciding(nested) is (decides or nested)


def test_an_exception_that_is_no_group_decides_itself() -> None:
    assert deciding(BUG) is BUG


def test_the_traceback_of_an_outcome_names_what_was_raised_beside_it() -> None:
    rejected = Reject("no")
    assert "a bug" in "".join(traceback.format_exception(deciding(ExceptionGroup("tasks", [BUG, rejected]))))


# --- in handlers


@pytest.mark.parametrize("fails", [fails_with, fails_in_anyio_with])
@pytest.mark.asyncio
async def test_a_reject_from_a_task_group_is_a_dead_letter_at_once(app: App, fails: Any) -> None:
    @app.consumer("orders", backoff="1h")
    async def ship(number: int) -> None:
        await fails(Reject("no such order"))

    async with running(app):
        await app.publish_many("orders", numbered("a"))
        (letter,) = await eventually(lambda: dead_letters(app, "ship"))
    assert (letter.reason, letter.error, letter.error_type) == ("rejected", "no such order", "headrace.Reject")


@pytest.mark.parametrize(("outcome", "attempts"), [(Snooze("1h"), 0), (Retry(after="1h"), 1)])
@pytest.mark.asyncio
async def test_a_delay_from_a_task_group_holds(app: App, outcome: Retry, attempts: int) -> None:
    @app.consumer("orders", backoff="1s", max_deliver=2)
    async def ship(number: int, message: Message) -> None:
        await fails_with(outcome)

    async with running(app):
        await app.publish_many("orders", numbered("a"))
        (row,) = await eventually(lambda: parked(app))
    assert row["attempts"] == attempts
    assert 3000 < row["due_in"] <= 3600


@pytest.mark.asyncio
async def test_a_batch_is_not_bisected_for_a_snooze_in_a_group(app: App) -> None:
    calls: list[list[int]] = []

    @app.consumer("orders", batch=4, batch_timeout="60s", concurrency=1, on_batch_error="bisect")
    async def ship(batch: list[int]) -> None:
        calls.append(batch)
        await fails_with(Snooze("1h"))

    async with running(app):
        await app.publish_many("orders", numbered("abcd"))
        await eventually(lambda: _are_parked(app, 4))
    assert calls == [[1, 2, 3, 4]]


async def _are_parked(app: App, count: int) -> bool:
    return len(await parked(app)) == count


@pytest.mark.asyncio
async def test_a_transaction_is_rolled_back_for_a_snooze_in_a_group(app: App) -> None:
    @app.consumer("orders", transactional=True, publishes="bills")
    async def ship(number: int, message: Message) -> None:
        assert message.transaction is not None
        await message.transaction.publish("bills", "a", 1)
        await fails_with(Snooze("1h"))

    async with running(app):
        await store.create_stream(app.database, "bills")
        await app.publish_many("orders", numbered("a"))
        (row,) = await eventually(lambda: parked(app))
        assert await app.database.fetchval("select count(*) from headrace_streams.bills") == 0
    assert row["attempts"] == 0


Session = NewType("Session", object)


@pytest.mark.asyncio
async def test_layers_around_the_handler_see_the_group_and_may_raise_one(app: App) -> None:
    seen: list[BaseException] = []

    @app.provide
    async def session() -> AsyncIterator[Session]:
        try:
            yield Session(object())
        except BaseException as error:
            seen.append(error)
            raise

    @app.middleware
    async def watch(delivery: Any, call_next: Any) -> Any:
        try:
            return await call_next()
        except ExceptionGroup as group:
            seen.append(group)
            raise ExceptionGroup("of the middleware", [group, Reject("worse")]) from None

    @app.consumer("orders")
    async def ship(number: int, found: Depends[Session]) -> None:
        await fails_with(Snooze("1h"))

    async with running(app):
        await app.publish_many("orders", numbered("a"))
        (letter,) = await eventually(lambda: dead_letters(app, "ship"))
    assert letter.error == "worse"
    assert all(isinstance(error, ExceptionGroup) for error in seen)
    assert len(seen) == 2


@pytest.mark.parametrize("runner", ["process", "thread"])
@pytest.mark.asyncio
async def test_an_outcome_leaves_a_thread_or_process_without_what_cannot(app: App, runner: Any) -> None:
    app.consumer("orders", runner=runner, name="pick", concurrency=1)(worker_functions.reject_in_a_group)
    async with running(app):
        await app.publish("orders", "a", {"numbers": [6], "into": ""})
        (letter,) = await eventually(lambda: dead_letters(app, "pick"))
    assert (letter.reason, letter.error) == ("rejected", "no sixes")


@pytest.mark.asyncio
async def test_the_harness_takes_an_outcome_in_a_group_for_no_error(dsn: str) -> None:
    app = App(dsn)

    @app.consumer("orders")
    async def ship(number: int) -> None:
        await fails_with(Reject("no"))

    async with Harness(app) as harness:
        await app.publish("orders", "a", 1)
        await harness.drain(raise_errors=True)
        (letter,) = await harness.dead_letters(ship)
    assert letter.error == "no"
