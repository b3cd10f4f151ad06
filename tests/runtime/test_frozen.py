"""A process that freezes between the look at a lease and the handler: the handler does not begin."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from headrace import App, Batch, Depends, Message, Transaction
from headrace.flow.in_flight import InFlightTracker
from headrace.model import clock
from headrace.model.clock import Time
from headrace.model.errors import LeaseLost
from headrace.runtime.handlers.handler import Handler
from headrace.runtime.handlers.worker_protocol import Request, Sent, _answer, opened
from headrace.runtime.messages.transaction import Transaction as Begun
from tests.runtime import worker_functions
from tests.runtime.running import running

ACK_WAIT = 3600.0


class Client:
    """A dependency."""


class Freezer:
    """The clock of a process that freezes once, for longer than its leases. It was published when `armed`."""

    def __init__(self) -> None:
        self.armed = False
        self.frozen = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.frozen

    def freeze(self) -> None:
        if self.armed and not self.frozen:
            self.frozen = 2 * ACK_WAIT

    def before(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return an async function that freezes first."""

        async def frozen(*args: Any, **options: Any) -> Any:
            self.freeze()
            return await call(*args, **options)

        return frozen

    def before_threads(self, run_sync: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the function that runs others in threads, which freezes in the thread, before the other runs."""

        async def frozen(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            def late(*args: Any) -> Any:
                self.freeze()
                return function(*args)

            return await run_sync(late, *args, **options)

        return frozen


@pytest.fixture
def freezer() -> Freezer:
    return Freezer()


@pytest.fixture
def app(dsn: str, freezer: Freezer, monkeypatch: pytest.MonkeyPatch) -> App:
    """An app whose fetcher does not look at the clock before the handler does. It would extend the leases."""
    monkeypatch.setattr(InFlightTracker, "is_late", lambda *_: False)
    app = App(dsn, streams=["orders"])
    app._time = Time(clock=freezer)
    return app


async def work_off(app: App, freezer: Freezer, data: Any = 1) -> int:
    """Publish two messages, and return how many were leased until both were handled."""
    async with running(app):
        freezer.armed = True
        await app.publish_many("orders", [("a", data), ("a", data)])
        await app.idle()
        assert freezer.frozen
        (counts,) = app.statistics()["consumers"].values()
        assert counts["acked"] == 2
        return int(counts["leased"])


@pytest.mark.asyncio
@pytest.mark.parametrize("batch", [None, 2], ids=["messages", "batches"])
async def test_a_handler_in_a_thread_does_not_begin_after_its_lease(
    app: App, freezer: Freezer, monkeypatch: pytest.MonkeyPatch, batch: int | None
) -> None:
    began: list[float] = []

    def ship(delivery: Message) -> None:
        began.extend(message.lease.deadline - freezer() for message in delivery.messages)

    def ship_all(delivery: Batch) -> None:
        ship(delivery)  # type: ignore[arg-type]

    app.consumer("orders", name="ship", ack_wait=ACK_WAIT, batch=batch)(ship if batch is None else ship_all)
    monkeypatch.setattr(anyio.to_thread, "run_sync", freezer.before_threads(anyio.to_thread.run_sync))
    assert await work_off(app, freezer) >= 4
    assert len(began) == 2
    assert min(began) > 0


@pytest.mark.asyncio
@pytest.mark.parametrize("waits_for", ["connection", "dependency", "middleware"])
async def test_a_handler_behind_a_wait_does_not_begin_after_its_lease(
    app: App, freezer: Freezer, monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    began: list[float] = []

    def note(message: Message) -> None:
        began.append(message.lease.deadline - freezer())

    match waits_for:
        case "connection":

            async def ship(message: Message, tx: Transaction) -> None:
                note(message)

            app.consumer("orders", ack_wait=ACK_WAIT, transactional=True)(ship)
            monkeypatch.setattr(Begun, "begin", freezer.before(Begun.begin))
        case "dependency":

            @app.provide(scope="message")
            async def client() -> Client:
                freezer.freeze()
                return Client()

            async def ship_with(message: Message, client: Depends[Client]) -> None:
                note(message)

            app.consumer("orders", ack_wait=ACK_WAIT)(ship_with)
        case "middleware":

            @app.middleware
            async def waiting(delivery: Message, call_next: Any) -> Any:
                freezer.freeze()
                return await call_next()

            async def ship_inside(message: Message) -> None:
                note(message)

            app.consumer("orders", ack_wait=ACK_WAIT)(ship_inside)
    assert await work_off(app, freezer) >= 4
    assert len(began) == 2
    assert min(began) > 0


@pytest.mark.asyncio
async def test_a_handler_in_a_process_does_not_begin_after_its_lease(
    app: App, freezer: Freezer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    app.consumer("orders", runner="process", concurrency=1, ack_wait=ACK_WAIT)(worker_functions.add)
    monkeypatch.setattr(anyio.to_thread, "run_sync", freezer.before_threads(anyio.to_thread.run_sync))
    into = tmp_path / "notes"
    assert await work_off(app, freezer, {"numbers": [1], "into": str(into)}) >= 4
    assert [line.split()[2:4] for line in into.read_text().splitlines()] == [["1", "1"], ["2", "1"]], (
        "no attempt counts"
    )


def test_a_worker_process_looks_at_the_lease_once_more(tmp_path: Path) -> None:
    """The request may have waited in the pipe while both processes were frozen."""
    into = tmp_path / "notes"
    sent = Sent("a", 1, 1, 0, f'{{"numbers": [1], "into": "{into}"}}', None, "a")
    handler = Handler(worker_functions.add)
    for until in (clock.suspension_clock() - 1, clock.suspension_clock() + 60):
        with suppress(LeaseLost):
            opened(_answer(handler, Request("orders", "add", [sent], until)), None)  # type: ignore[arg-type]
            assert until > clock.suspension_clock()
    assert len(into.read_text().splitlines()) == 1


@pytest.mark.parametrize("there", [{"CLOCK_BOOTTIME": 7}, {"CLOCK_MONOTONIC": 6}], ids=["Linux", "macOS"])
def test_leases_are_measured_by_a_clock_that_counts_suspension(
    monkeypatch: pytest.MonkeyPatch, there: dict[str, int]
) -> None:
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        monkeypatch.delattr(time, name, raising=False)
    for name, number in there.items():
        monkeypatch.setattr(time, name, number, raising=False)
    monkeypatch.setattr(time, "clock_gettime", {7: 5000.0, 6: 4000.0}.__getitem__)
    assert clock._suspension_clock()() in (5000.0, 4000.0)


def test_a_system_without_such_a_clock_has_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> float:
        raise OSError

    monkeypatch.setattr(time, "clock_gettime", refuse)
    assert clock._suspension_clock() is time.monotonic
    assert clock.Time().clock is clock.suspension_clock
