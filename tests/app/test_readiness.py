"""Readiness: how it is decided, and an app that starts, runs, loses its database, and stops."""

from __future__ import annotations

import msgspec
import pytest

from headrace import App
from headrace.app.limits import ServiceLimits
from headrace.app.readiness import MAX_UNANSWERED, ConsumerState, assess
from headrace.model.errors import StoreUnavailable
from headrace.runtime.pipeline.fetcher import Fetcher
from tests.runtime.running import Gate, eventually, running


def _sight(unanswered: float | None = None, *, breaker: str | None = None) -> ConsumerState:
    return ConsumerState(unanswered=unanswered, leased=None, breaker=breaker)


def test_an_app_is_ready_while_the_database_answers_in_time() -> None:
    found = assess({"orders:ship": _sight(), "orders:bill": _sight(MAX_UNANSWERED - 1)}, draining=False)
    assert found
    assert (found.ready, found.database, found.reasons) == (True, True, ())


def test_one_consumer_that_gets_no_answer_makes_it_unready_and_is_named() -> None:
    found = assess({"orders:ship": _sight(), "orders:bill": _sight(MAX_UNANSWERED + 2)}, draining=False)
    assert not found
    assert found.reasons == ("orders:bill: the database has not answered for 12 s.",)
    assert (found.consumers["orders:ship"].ready, found.consumers["orders:bill"].ready) == (True, False)
    assert found.database


def test_the_database_is_away_when_it_answers_none() -> None:
    assert not assess({"orders:ship": _sight(MAX_UNANSWERED + 1)}, draining=False).database


def test_an_open_breaker_is_reported_and_leaves_the_app_ready() -> None:
    found = assess({"orders:ship": _sight(breaker="open")}, draining=False)
    assert found
    assert found.consumers["orders:ship"].breaker == "open"


def test_an_app_is_not_ready_while_it_drains() -> None:
    found = assess({"orders:ship": _sight()}, draining=True)
    assert (found.ready, found.draining, found.database) == (False, True, True)
    assert "is stopping" in found.reasons[0]


def test_readiness_can_be_encoded_as_json() -> None:
    found = msgspec.json.decode(msgspec.json.encode(assess({"orders:ship": _sight(20)}, draining=False)))
    assert found["ready"] is False
    assert found["consumers"]["orders:ship"]["unanswered"] == 20


@pytest.mark.asyncio
async def test_an_app_is_ready_from_its_start_until_its_stop(dsn: str) -> None:
    app, gate = App(dsn, streams=["orders"]), Gate()

    @app.consumer("orders", breaker=True)
    async def ship() -> None:
        await gate.wait()

    assert not app.readiness()
    async with running(app):
        assert app.readiness()
        assert app.readiness().consumers["orders:ship"].leased is None
        await app.publish("orders", "a", 1)
        await gate.until(1)
        found = app.readiness()
        assert found
        assert found.consumers["orders:ship"].leased is not None
        assert found.consumers["orders:ship"].breaker == "closed"
        app.stop()
        assert app.readiness().draining
        gate.open()
    assert not app.readiness()
    assert app.readiness().reasons == ("The app is not running.",)


@pytest.mark.asyncio
async def test_an_app_is_not_ready_while_its_database_is_away(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App(dsn, streams=["orders"])

    @app.consumer("orders")
    async def ship() -> None: ...

    away = True
    call = Fetcher._call

    async def fails(fetcher: Fetcher, want: int) -> object:
        if away:
            raise StoreUnavailable("gone")
        return await call(fetcher, want)

    async def unanswered() -> bool:
        return app.readiness().consumers["orders:ship"].unanswered is not None

    async def answered() -> bool:
        return app.readiness().consumers["orders:ship"].unanswered is None

    app._limits = ServiceLimits(unanswered=0.0)
    async with running(app):
        assert app.readiness()
        monkeypatch.setattr(Fetcher, "_call", fails)
        await app.publish("orders", "a", 1)
        await eventually(unanswered)
        assert not app.readiness()
        assert not app.readiness().database
        away = False
        await eventually(answered)
        await app.idle()
