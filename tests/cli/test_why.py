"""On call: consumers that are slow or fail, each for a cause of its own, and all that show the cause."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from headrace import App, Breaker, store
from headrace.admin.live.database import LiveDatabase
from headrace.app import heartbeats
from headrace.cli.observe.display.tables import CONSUMERS
from headrace.model.specs import ConsumerSpec
from headrace.model.watching.live import LiveSnapshot
from headrace.server.asgi import Server
from headrace.server.options import Options
from tests.cli.conftest import Headrace

pytestmark = pytest.mark.asyncio

SLOW = {
    "limited": ("rate_limit", "Its rate limit of 0.001/s holds it back."),
    "outranked": ("priority", "Consumers of higher priority in its process go first."),
    "hot": ("key", "has the key hot, whose messages are handled in order."),
    "busy": ("busy", "Nearly all of its actors are busy."),
    "asleep": ("paused", "It is paused until a user resumes it."),
    "alone": ("unattended", "and no process works on them."),
}
"""Consumers that are slow: their cause, and a part of the sentence."""

FAILING = {
    "raising": ("failing", "ValueError: no stock"),
    "broken": ("breaker", "the last of them: ConnectionError: the bank refuses"),
    "blocked": ("blocked", "wait behind dead letters that block their keys."),
}
"""Consumers that fail."""

CASES = {**SLOW, **FAILING}


def _declare(app: App) -> None:
    """Declare consumers whose handlers never end, so that nothing changes once each has its cause."""
    forever = anyio.Event()

    @app.consumer("orders", rate_limit=0.001, rate_burst=1)
    async def limited(order: int) -> None: ...

    @app.consumer("orders", priority=-1, concurrency=4)
    async def outranked(order: int) -> None:
        await forever.wait()

    @app.consumer("hot-orders", concurrency=8)
    async def hot(order: int) -> None:
        if order >= 0:
            await forever.wait()

    @app.consumer("orders", concurrency=2)
    async def busy(order: int) -> None:
        await forever.wait()

    @app.consumer("orders")
    async def asleep(order: int) -> None: ...

    @app.consumer("orders", backoff=3600)
    async def raising(order: int) -> None:
        raise ValueError("no stock")

    @app.consumer("orders", breaker=Breaker(failures=1, pause=3600, longest=3600))
    async def broken(order: int) -> None:
        raise ConnectionError("the bank refuses")

    @app.consumer("orders", max_deliver=1, on_exhausted="block")
    async def blocked(order: int) -> None:
        raise ValueError("no stock")


def _stream(name: str) -> str:
    return "hot-orders" if name == "hot" else "orders"


@asynccontextmanager
async def _all_behind(dsn: str) -> AsyncIterator[tuple[App, httpx.AsyncClient]]:
    """Run the consumers, with messages that are an hour old, and a server in their process."""
    app = App(dsn, streams=["orders", "hot-orders"], shutdown_timeout=0)
    _declare(app)
    server = Server(app, Options(allowed_hosts=("headrace",)))
    async with app:
        for name in ("orders", "hot-orders"):
            await store.create_stream(app.database, name)
        for name in ("alone", "asleep"):
            await store.declare_consumer(app.database, ConsumerSpec(stream="orders", name=name))
        await app.admin.pause("orders", "asleep")
        await app.publish_many("orders", [(f"k.{n}", n) for n in range(40)])
        await app.publish_many("hot-orders", [("hot", n) for n in range(30)] + [(f"k.{n}", -1) for n in range(10)])
        for stream in ("orders", "hot-orders"):
            await app.database.fetch(
                f"update headrace_streams.\"{stream}\" set created_at = created_at - interval '1 hour'"
            )
    async with app.running():
        transport = httpx.ASGITransport(app=server)
        async with httpx.AsyncClient(transport=transport, base_url="http://headrace/v1") as client:
            yield app, client


async def _settled(read: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Read until each consumer has its cause. Returns what was read then."""
    found: dict[str, Any] = {}
    try:
        with anyio.fail_after(60):
            while {name: cause for name, (cause, _) in found.items()} != {
                name: cause for name, (cause, _) in CASES.items()
            }:
                found = await read()
    except TimeoutError:
        pytest.fail(f"{found}")
    for name, (_, part) in CASES.items():
        assert part in found[name][1], (name, found[name])
    return found


async def test_all_that_is_shown_names_the_cause_of_each_consumer(
    dsn: str, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DATABASE", dsn)
    monkeypatch.setattr(heartbeats, "INTERVAL", 0.2)
    async with _all_behind(dsn) as (app, client):

        async def of_each() -> dict[str, Any]:
            answers = {name: await client.get(f"/streams/{_stream(name)}/consumers/{name}/why") for name in CASES}
            return {
                name: (answer.json()["cause"], answer.json()["text"])
                for name, answer in answers.items()
                if answer.status_code == 200  # a slow database refuses some calls
            }

        async def of_the_console() -> dict[str, Any]:
            app_server.live._due = float("-inf")
            app_server.live.changed()
            rows = (await client.get("/live/consumers")).json()["data"]
            return {row["name"]: (row["cause"], row["why"]) for row in rows}

        async def of_observe() -> dict[str, Any]:
            live.changed()
            snapshot: LiveSnapshot = await live.snapshot(app.database)
            reason = next(column for column in CONSUMERS if column.label == "reason")
            return {row.name: (row.cause, str(reason.cell(row, 400))) for row in snapshot.consumers}

        app_server: Any = client._transport.app  # type: ignore[attr-defined]
        live = LiveDatabase()
        await _settled(of_each)
        shown = await _settled(of_the_console)
        await _settled(of_observe)
        assert "2 of 2 actors are busy (fixed)." in shown["busy"][1]
        assert "It tries one message in" in shown["broken"][1]
        for name, (_, part) in CASES.items():
            ended = await anyio.to_thread.run_sync(headrace, "consumer", "info", _stream(name), name)
            assert part in " ".join(ended.out.split()), ended
        one = (await client.get("/live/streams/orders/consumers/broken")).json()["data"]
        assert one["processes"][0]["breaker_reason"] == "ConnectionError: the bank refuses"
        attention = {item["name"]: item["reason"] for item in (await client.get("/live")).json()["data"]["attention"]}
        for name in ("asleep", "alone", *FAILING):
            assert CASES[name][1] in attention[name]


async def test_the_percentiles_of_a_consumer_are_measured(dsn: str) -> None:
    app = App(dsn, streams=["orders"])

    @app.consumer("orders")
    async def ship(order: int) -> None: ...

    @app.consumer("orders", batch=10)
    async def bill(orders: list[int]) -> None:
        raise ValueError("no")

    async with app.running():
        await app.publish("orders", "a", 1)
        with anyio.fail_after(60):
            while not all(one["durations"] for one in app.statistics()["consumers"].values()):
                await anyio.lowlevel.checkpoint()
        await heartbeats.Heartbeats(app.database, app.statistics).send()
        reports = [(await store.consumer_at_work(app.database, "orders", name))[0].work for name in ("ship", "bill")]
    for report in reports:
        assert report.durations is not None
        assert 0 <= report.durations.p50 <= report.durations.p95 <= report.durations.p99
