"""The last attempt: the event in the log, and the hooks that are called for it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from headrace import App, Message, Reject, Router, StoreUnavailable, store
from headrace.model.errors import ConfigurationError
from headrace.model.outcomes import Settlement
from headrace.model.text.error_text import error_type
from headrace.runtime import log_burst
from headrace.runtime.settling import dead_letters as hooks
from headrace.runtime.user_code import leave_out_our_frames
from tests.runtime.running import dead_letters, running, work_off
from tests.support.logs import logged


class NoStock(Exception):
    """An error of the application."""


async def refused(number: int) -> None:
    if number == 0:
        raise Reject("no such customer")
    raise NoStock(f"{number} of none")


@pytest.mark.asyncio
async def test_the_last_attempt_is_one_event_with_its_exception(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.consumer("orders", name="ship", max_deliver=2, backoff=0)(refused)
    await work_off(app, ("a", 0), ("b", 1))
    first, second = logged(caplog, "message dead-lettered", consumer="ship", stream="orders")
    assert [(r.reason, r.error_type, r.attempt) for r in cast(list[Any], [first, second])] == [
        ("rejected", "headrace.Reject", 1), ("exhausted", f"{__name__}.NoStock", 2),
    ]  # fmt: skip
    assert second.levelno == logging.ERROR
    assert second.exc_info is not None
    assert isinstance(second.exc_info[1], NoStock)
    (before,) = logged(caplog, "message failed", consumer="ship")
    assert (cast(Any, before).key, cast(Any, before).attempt) == ("b", 1)


@pytest.mark.asyncio
async def test_frames_of_headrace_are_in_no_traceback(app: App) -> None:
    @app.middleware
    async def around(_: Any, call_next: Any) -> Any:
        return await call_next()

    app.consumer("orders", name="ship", max_deliver=1)(refused)

    @app.consumer("orders", max_deliver=1)
    def in_a_thread(number: int) -> None:
        raise NoStock(str(number))

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        found = [(await dead_letters(app, name))[0] for name in ("ship", "in_a_thread")]
    for letter in found:
        assert letter.traceback is not None
        files = [line for line in letter.traceback.splitlines() if line.startswith("  File ")]
        assert len(files) == 2, "the middleware and the handler"
        assert all(__file__ in line for line in files)


@dataclass(frozen=True)
class Frozen(Exception):
    number: int


@pytest.mark.asyncio
async def test_an_error_of_a_frozen_class_is_a_failure_like_any_other(app: App) -> None:
    @app.consumer("orders", name="ship", max_deliver=1)
    async def ship(number: int) -> None:
        raise Frozen(number)

    await work_off(app, ("a", 1))
    async with running(app):
        (letter,) = await dead_letters(app, "ship")
    assert letter.error_type == f"{__name__}.Frozen"


def test_the_type_of_an_error_fits_into_an_index_whatever_its_class_says() -> None:
    odd = type("\U0001f4a5" * 3000, (Exception,), {"__module__": None})
    assert len(error_type(odd()).encode()) <= 2000


def test_a_traceback_of_nothing_but_headrace_stays() -> None:
    error: BaseException = ValueError()
    try:
        exec("def f():\n    raise ValueError\nf()", {"__name__": "headrace.somewhere"})
    except ValueError as raised:
        error = raised.with_traceback(raised.__traceback__ and raised.__traceback__.tb_next)
    trace = error.__traceback__
    leave_out_our_frames(error)
    assert error.__traceback__ is trace is not None


@pytest.mark.asyncio
async def test_hooks_get_the_message_and_the_exception_after_the_dead_letter_is_stored(app: App) -> None:
    router, seen = Router(), list[tuple[str, str, int, str]]()

    @app.on_dead_letter
    async def everywhere(message: Message, error: BaseException) -> None:
        stored = [letter.seq for letter in await dead_letters(app, message.consumer)]
        assert message.seq in stored
        seen.append(("app", message.consumer, message.data, type(error).__name__))

    @router.on_dead_letter
    async def of_router(message: Message, error: BaseException) -> None:
        seen.append(("router", message.consumer, message.data, type(error).__name__))

    app.consumer("orders", name="ship", max_deliver=1)(refused)
    router.consumer("orders", name="bill", max_deliver=1)(refused)
    app.include(router)
    await work_off(app, ("a", 0), ("b", 1))
    assert sorted(seen) == [
        ("app", "bill", 0, "Reject"), ("app", "bill", 1, "NoStock"), ("app", "ship", 0, "Reject"),
        ("app", "ship", 1, "NoStock"), ("router", "bill", 0, "Reject"), ("router", "bill", 1, "NoStock"),
    ]  # fmt: skip


@pytest.mark.asyncio
async def test_a_hook_that_raises_or_hangs_does_no_harm(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "HOOK_TIMEOUT", 0.01)
    called: list[int] = []

    @app.on_dead_letter
    async def fails(message: Message, error: BaseException) -> None:
        raise SystemExit

    @app.on_dead_letter
    async def hangs(message: Message, error: BaseException) -> None:
        called.append(message.seq)
        await anyio.sleep_forever()

    app.consumer("orders", name="ship", max_deliver=1)(refused)
    async with running(app):
        await app.publish_many("orders", [("a", 0), ("b", 1)])
        while called != [1, 2]:
            await anyio.lowlevel.checkpoint()
    records = cast(list[Any], logged(caplog, "dead letter hook failed", consumer="ship"))
    assert len([record for record in records if "fails" in record.hook]) == 2
    assert any("hangs" in record.hook and isinstance(record.error, TimeoutError) for record in records)


@pytest.mark.asyncio
async def test_more_dead_letters_than_may_wait_are_logged_without_their_hooks(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "MAX_WAITING", 2)
    called: list[int] = []

    @app.on_dead_letter
    async def note(message: Message, error: BaseException) -> None:
        called.append(message.seq)

    app.consumer("orders", name="ship", max_deliver=1, batch=10, batch_timeout=5)(_refuse_all)
    await work_off(app, *((str(number), number) for number in range(10)))
    skipped = logged(caplog, "dead letter without its hooks", consumer="ship")
    assert len(called) + len(skipped) == 10
    assert len(skipped) > 0


@pytest.mark.asyncio
async def test_a_flood_of_dead_letters_does_not_flood_the_log(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "MAX_WAITING", 0)
    monkeypatch.setattr(log_burst, "BURST", 3)

    @app.on_dead_letter
    async def note(message: Message, error: BaseException) -> None:
        raise AssertionError

    app.consumer("orders", name="ship", max_deliver=1, batch=10, batch_timeout=5)(_refuse_all)
    await work_off(app, *((str(number), number) for number in range(10)))
    assert 3 <= len(logged(caplog, "dead letter without its hooks", consumer="ship")) < 10


async def _refuse_all(numbers: list[int]) -> Reject:
    return Reject("no")


@pytest.mark.asyncio
async def test_an_outcome_that_came_too_late_after_an_outage_is_no_dead_letter(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, calls = store.settle, [0]

    async def after_an_outage(database: Any, consumer: int, settlement: Settlement, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise StoreUnavailable("the database is away, until the lease is over")
        await database.fetchval("delete from headrace_internal.leases where lease_id = any ($1)", settlement.leases)
        return await settle(database, consumer, settlement, **more)

    monkeypatch.setattr(store, "settle", after_an_outage)
    called: list[int] = []

    @app.on_dead_letter
    async def note(message: Message, error: BaseException) -> None:
        called.append(message.seq)

    app.consumer("orders", name="ship", max_deliver=1)(refused)
    await work_off(app, ("a", 1))
    assert calls[0] >= 2
    assert called == []
    assert not logged(caplog, "message dead-lettered", consumer="ship")


@pytest.mark.asyncio
async def test_a_dropped_message_is_no_dead_letter(app: App, caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []

    @app.on_dead_letter
    async def note(message: Message, error: BaseException) -> None:
        called.append(message.seq)

    app.consumer("orders", name="ship", max_deliver=1, on_exhausted="drop")(refused)
    await work_off(app, ("a", 1))
    assert logged(caplog, "message dropped", consumer="ship", seq=1)
    assert not logged(caplog, "message dead-lettered", consumer="ship")
    assert called == []


def test_a_hook_must_be_an_async_function(app: App) -> None:
    with pytest.raises(ConfigurationError, match="async function"):
        app.on_dead_letter(lambda message, error: None)  # type: ignore[arg-type, return-value]
