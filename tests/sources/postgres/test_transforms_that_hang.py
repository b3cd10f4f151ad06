"""A transform that never returns stops its source with a sentence, and nothing else."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import httpx
import pytest

from headrace import store
from headrace.sources.postgres.errors import SourceStopped
from headrace.sources.postgres.limits import CaptureLimits
from headrace.sources.postgres.rules import transform_watchdog
from headrace.sources.postgres.rules.transform_watchdog import TICK, TransformStuck, TransformWatchdog
from tests.cli.processes import Commands
from tests.sources.postgres.captured import Shop
from tests.support.logs import logged

MODULE = """
import re
import time

from headrace import transform

@transform
def loops(message):
    while message["record"]["id"] != 1:
        pass
    return message

@transform
def catches(message):
    while message["record"]["id"] != 1:
        try:
            while True:
                pass
        except Exception:
            pass
    return message

@transform
def sleeps(message):
    if message["record"]["id"] != 1:
        time.sleep(1_000_000)
    return message

@transform
def matches(message):
    if message["record"]["id"] != 1:
        re.fullmatch("(a+)+", "a" * 80 + "b")
    return message

@transform
def swallows(message):
    while message["record"]["id"] != 1:
        try:
            time.sleep(1_000_000)
        except BaseException:
            pass
    return message
"""

QUICK = CaptureLimits(transform_timeout=2 * TICK, interruption_grace=4 * TICK, sources_interval=0.1)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "hanging_capture.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "hanging_capture"
    sys.modules.pop("hanging_capture", None)


@pytest.mark.asyncio
@pytest.mark.parametrize("function", ["loops", "catches", "sleeps", "matches"])
async def test_the_source_stops_and_the_others_go_on(
    shop: Shop, module: str, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    await shop.source(transform=f"{module}:{function}")
    await shop.source("other")
    async with shop.captured(QUICK):
        await shop.until_running()
        await shop.until_running("other")
        await shop.sql.execute("insert into orders values (1)")
        await shop.until(1)
        await shop.sql.execute("insert into orders values (2)")
        capture = (await shop.until_state("stopped")).capture
        assert capture is not None
        assert capture.reason is not None
        assert capture.reason.startswith(f"The transform '{module}:{function}' has not returned after 0.5 s.")
        assert capture.mend == "headrace source postgres resume shop"
        await shop.sql.execute("insert into orders values (3)")
        await shop.until(3, "other")
        assert [one["record"]["id"] for one in await shop.stream()] == [1]
    (record,) = logged(caplog, "capture stopped", source="shop")
    assert record.exc_info is not None  # says where the function was


@pytest.mark.asyncio
async def test_it_stays_stopped_until_it_is_resumed(shop: Shop, module: str, tmp_path: Path) -> None:
    info = await shop.source(transform=f"{module}:loops")
    async with shop.captured(QUICK):
        await shop.until_running()
        await shop.sql.execute("insert into orders values (2)")
        await shop.until_state("stopped")
    async with shop.captured(QUICK):
        (todo,) = await store.captures_to_do(shop.database)
        assert (todo.paused, todo.free) == (True, True)
        assert await store.take_capture(shop.database, todo.number, uuid4(), 6.0) is None
        await store.pause_capture(shop.database, info.id, paused=True)  # changes nothing
        assert (await shop.until_state("stopped")).capture is not None
        await shop.sql.execute("insert into orders values (1)")
        corrected = (tmp_path / f"{module}.py").read_text().replace("!= 1", "== 3")
        exec(compile(corrected, module, "exec"), sys.modules[module].__dict__)
        await store.pause_capture(shop.database, info.id, paused=False)
        await shop.until_running()
        found = await shop.until(2)
    assert [one["record"]["id"] for one in found] == [2, 1]


@pytest.mark.asyncio
async def test_it_is_stopped_in_a_backfill_and_when_a_failure_is_retried(shop: Shop, module: str) -> None:
    await shop.sql.execute("insert into orders values (2)")
    await shop.source(transform=f"{module}:loops", backfill=True)
    info = await store.source(shop.database, "shop")
    await store.start_backfill(shop.database, info.id, "public.orders", None, None)
    async with shop.captured(QUICK):
        await shop.until_state("stopped")
    number = (await store.captures_to_do(shop.database))[0].number
    await shop.sql.execute("update headrace_internal.backfills set state = 'cancelled'")
    await shop.sql.execute(
        "insert into headrace_internal.capture_failures (source_id, key, data, error, retry) values ($1, 'k', $2, 'x', true)",
        number, '{"record":{"id":2},"metadata":{"table_name":"orders","message_key":"k"}}',
    )  # fmt: skip
    await store.pause_capture(shop.database, info.id, paused=False)
    async with shop.captured(QUICK):
        await shop.until_state("stopped")


@pytest.mark.asyncio
async def test_a_capture_that_another_process_holds_is_not_stopped(shop: Shop) -> None:
    info = await shop.source()
    (todo,) = await store.captures_to_do(shop.database)
    epoch = await store.take_capture(shop.database, todo.number, uuid4(), 6.0)
    assert epoch is not None
    assert await store.stop_capture(shop.database, todo.number, epoch - 1, "It hangs.") is False
    assert await store.stop_capture(shop.database, todo.number, epoch, "It hangs.", "mend it") is True
    assert await store.stop_capture(shop.database, todo.number, epoch, "Again.") is False
    assert await store.renew_capture(shop.database, todo.number, epoch, 6.0) is False
    await store.pause_capture(shop.database, info.id, paused=False)
    capture = (await store.source(shop.database, "shop")).capture
    assert capture is not None
    assert (capture.state, capture.reason, capture.mend) == ("unattended", None, None)


# --- the watchdog


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[SourceStopped]:
    """The errors that the watchdog stored. The process may not be ended."""
    monkeypatch.setattr(transform_watchdog, "_may_end_process", False)
    return []


def _watched(
    watchdog: TransformWatchdog, function: Callable[[dict[str, Any]], Any], recorded: list[SourceStopped]
) -> Callable[[dict[str, Any]], Any]:
    async def record(error: SourceStopped) -> None:
        recorded.append(error)

    return watchdog.watched(function, "shop:clean", "orders", record)


def test_a_call_in_time_is_passed_through(recorded: list[SourceStopped]) -> None:
    watchdog = TransformWatchdog(10.0, 1.0)

    def fails(_: Any) -> Any:
        raise LookupError("no")

    with watchdog, watchdog:  # of two sources
        assert _watched(watchdog, lambda message: message["a"], recorded)({"a": 1}) == 1
        with pytest.raises(LookupError):
            _watched(watchdog, fails, recorded)({})
        assert watchdog._current is None
    assert watchdog._stop.is_set()


def test_a_late_signal_interrupts_nothing_else(recorded: list[SourceStopped]) -> None:
    """A signal that arrives after the call has returned, or in a later call, does nothing."""
    assert transform_watchdog._SIGNAL is not None
    watchdog = TransformWatchdog(1000.0, 1.0)
    with watchdog:
        call = _watched(watchdog, lambda _: signal.raise_signal(transform_watchdog._SIGNAL or 0), recorded)
        watchdog._interrupted = 1
        with pytest.raises(TransformStuck):
            call({})
        signal.raise_signal(transform_watchdog._SIGNAL)
        call({})  # the second call, which is not late
    signal.raise_signal(transform_watchdog._SIGNAL)  # the handler stays


@pytest.mark.parametrize(("looks", "stopped"), [(3, 0), (4, 1), (30, 1)])
def test_the_watchdog_counts_its_looks_and_not_the_time_of_a_frozen_process(
    recorded: list[SourceStopped], looks: int, stopped: int
) -> None:
    watchdog = TransformWatchdog(3 * TICK, 1.0)
    left = iter([False] * looks + [True])

    class Looks(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return next(left)

    watchdog._calls, watchdog._current = 1, _watched(watchdog, lambda _: None, recorded)  # type: ignore[assignment]
    thread = threading.Thread(target=watchdog._watch, args=(Looks(), False))
    thread.start()
    thread.join()
    assert len(recorded) == stopped  # the first look saw the call begin


def test_outside_of_the_main_thread_the_source_is_stored_as_stopped(
    recorded: list[SourceStopped], caplog: pytest.LogCaptureFixture
) -> None:
    watchdog = TransformWatchdog(2 * TICK, 1.0)
    returned = threading.Event()

    def run() -> None:
        with watchdog:
            call = _watched(watchdog, lambda _: _until(lambda: "holds up" in caplog.text), recorded)
            call({})
            returned.set()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert returned.is_set()
    assert len(recorded) == 1
    assert "'shop:clean' has not returned after 0.5 s" in recorded[0].reason
    (record,) = logged(caplog, "transform holds up the process", source="orders", error=recorded[0].reason)
    assert "in _until" in record.__dict__["stack"]


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


# --- real processes


@pytest.mark.asyncio
@pytest.mark.long
async def test_a_process_that_can_not_be_freed_ends_and_the_next_one_serves(
    shop: Shop, tmp_path: Path, module: str
) -> None:
    await shop.source(transform=f"{module}:swallows")
    await shop.source("third", transform=f"{module}:loops")
    await shop.source("other")
    with Commands(tmp_path) as commands:
        path = f"{commands.environment()['PYTHONPATH']}:{tmp_path}"
        running = commands("serve", "--port", "0", "--database", shop.dsn, "--processes", "2", PYTHONPATH=path)
        url = (await anyio.to_thread.run_sync(running.line, "listening  url=")).rpartition("url=")[2]
        await shop.until_running()
        await shop.until_running("other")
        await shop.sql.execute("insert into orders values (1), (2)")
        line = await anyio.to_thread.run_sync(running.line, "transform holds up the process")
        assert "source=shop" in line
        assert f"'{module}:swallows' has not returned after 3 s" in line
        assert "time.sleep(1_000_000)" in line
        assert "exit_code=75" in await anyio.to_thread.run_sync(running.line, "process died, starting another")
        await shop.sql.execute("insert into orders values (3)")
        await shop.until(3, "other")
        await shop.until_state("stopped")
        await shop.until_state("stopped", "third")
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            for _ in range(4):
                assert (await client.get("/v1/streams", headers={"connection": "close"})).status_code == 200
            ready = await client.get("/ready")
            assert ready.status_code == 503
            assert "has not returned after 3 s" in ready.text
            assert (await client.get("/ready?exclude=sources")).status_code == 200
        running.send(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(running.end) == 0
