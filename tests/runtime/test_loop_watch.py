"""A handler that blocks the event loop: its messages stay with it, and the log says what to do about it."""

from __future__ import annotations

import asyncio
import linecache
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import App, Message, store
from headrace.runtime.loop_watch import LoopWatch, WatchTimings
from headrace.runtime.pipeline.timings import Timings
from tests.runtime.running import Seen, running

TICK = 0.02
PATIENCE = 30.0


@pytest.fixture
def app(dsn: str) -> App:
    app = App(dsn, streams=["orders"])
    app._timings = Timings(watch=WatchTimings(tick=TICK, warn_after=2 * TICK))
    return app


class Blocked:
    """Lets a handler block its event loop until another thread has seen enough."""

    def __init__(self) -> None:
        self.until = threading.Event()

    def block(self) -> None:
        assert self.until.wait(PATIENCE)  # this line blocks


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Blocked]:
    blocked = Blocked()
    yield blocked
    blocked.until.set()


def released_by(blocked: Blocked, caplog: pytest.LogCaptureFixture, event: str) -> None:
    """Release the handler as soon as this event was logged."""

    class Release(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "event", None) == event:
                blocked.until.set()

    logging.getLogger("headrace").addHandler(handler := Release())
    caplog.set_level(logging.INFO, "headrace")
    blocked.handler = handler  # type: ignore[attr-defined]


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[Any]:
    return [record for record in caplog.records if getattr(record, "event", None) == event]


@pytest.mark.asyncio
async def test_a_handler_that_blocks_the_event_loop_is_named_while_it_does(
    app: App, blocked: Blocked, caplog: pytest.LogCaptureFixture
) -> None:
    released_by(blocked, caplog, "event loop blocked")

    @app.consumer("orders", ack_wait="1h")
    async def ship() -> None:
        blocked.block()

    async with running(app):
        await app.publish("orders", "orders.7", 1)
        await app.idle()
        assert app.statistics()["event_loop"]["blocked"] >= 2 * TICK
    record = logged(caplog, "event loop blocked")[0]
    assert (record.consumer, record.stream, record.key, record.seq) == ("ship", "orders", "orders.7", 1)
    assert record.seconds >= 2 * TICK
    file, _, rest = record.at.rpartition(":")
    line, _, function = rest.partition(" in ")
    assert file == __file__
    assert linecache.getline(file, int(line)).endswith("# this line blocks\n")
    assert function == "block"
    assert "a plain `def`" in record.hint


@pytest.mark.asyncio
async def test_other_code_that_blocks_the_event_loop_is_named_by_its_line(
    app: App, blocked: Blocked, caplog: pytest.LogCaptureFixture
) -> None:
    released_by(blocked, caplog, "event loop blocked")

    @app.consumer("orders")
    async def ship() -> None: ...

    async with running(app):
        blocked.block()
        await asyncio.sleep(0)
    record = logged(caplog, "event loop blocked")[0]
    assert record.at.startswith(f"{__file__}:")
    assert not hasattr(record, "consumer")


@pytest.mark.asyncio
async def test_leases_are_kept_while_a_handler_blocks_the_event_loop(
    app: App, dsn: str, blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those of other consumers of the process, too, which could not keep them either."""
    extended: list[int] = []
    real = store.extend_leases

    async def extend(database: store.Database, consumer: int, leases: list[int], **more: Any) -> list[int]:
        alive = await real(database, consumer, leases, **more)
        if threading.current_thread() is not threading.main_thread() and leases and alive == leases:
            extended.append(consumer)
        if min(Counter(extended).values(), default=0) >= 6 and len(set(extended)) == 2:
            blocked.until.set()
        return alive

    monkeypatch.setattr(store, "extend_leases", extend)
    seen = Seen()
    going = asyncio.Event()

    @app.consumer("orders", ack_wait="500ms")
    async def ship(number: int, message: Message) -> None:
        seen.note(("ship", number, message.attempt))
        if number == 1:
            await going.wait()
            blocked.block()

    @app.consumer("orders", ack_wait="500ms")
    async def bill(number: int, message: Message) -> None:
        seen.note(("bill", number, message.attempt))
        if number == 1:
            await going.wait()

    async with running(app):
        await app.publish_many("orders", [("a", 1), ("a", 2)])
        await seen.until(2)
        began = time.monotonic()
        going.set()
        await app.idle()
        assert time.monotonic() - began > 2 * 0.5, "it was blocked for several times ack_wait"
        assert [counts["lost"] for counts in app.statistics()["consumers"].values()] == [0, 0]
    assert sorted(seen.notes) == [("bill", 1, 1), ("bill", 2, 1), ("ship", 1, 1), ("ship", 2, 1)]


@pytest.mark.asyncio
async def test_the_heartbeats_of_a_blocked_process_go_on_and_say_so(
    app: App, database: store.Database, blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str | None] = []
    real = store.record_heartbeat

    async def record(executor: store.Database, worker: Any, facts: Any, **more: Any) -> None:
        await real(executor, worker, facts, **more)
        if facts.blocked is not None:
            reported.append((await store.workers(executor))[1][0].blocked)
            blocked.until.set()

    monkeypatch.setattr(store, "record_heartbeat", record)

    @app.consumer("orders", ack_wait="1h")
    async def ship() -> None:
        blocked.block()

    async with running(app):
        await app.publish("orders", "secret", 1)
        await app.idle()
    assert reported[0] is not None
    assert reported[0].startswith(f"the handler of ship at {__file__}:")
    assert reported[0].endswith("in block, with message 1 of orders")


@pytest.mark.asyncio
async def test_a_loop_that_answers_is_left_alone(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    asked = threading.Event()

    class Counted(LoopWatch):
        answers = 0

        def _answer(self) -> None:
            super()._answer()
            self.answers += 1
            if self.answers == 3:
                asked.set()

    with Counted("postgresql://nowhere.invalid/nothing", WatchTimings(tick=TICK)) as watch:
        await asyncio.to_thread(asked.wait, PATIENCE)
        assert watch._thread_id == threading.get_ident()
    assert logged(caplog, "event loop blocked") == []


def test_the_watch_ends_with_its_loop() -> None:
    threads: list[threading.Thread] = []

    async def watched() -> None:
        watch = LoopWatch("postgresql://nowhere.invalid/nothing", WatchTimings(tick=TICK))
        watch.__enter__()  # a program that is interrupted may not leave it
        threads.extend(thread for thread in threading.enumerate() if thread.name == "headrace loop watch")

    asyncio.run(watched())
    (thread,) = threads
    assert thread.daemon
    thread.join(PATIENCE)
    assert not thread.is_alive()
