"""Startup checks: conditions that must hold before a consumer starts."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from headrace import App, ConfigurationError, Depends, Message, store
from tests.runtime.running import running, work_off


class Warehouse:
    def __init__(self) -> None:
        self.answers = True


@pytest.mark.asyncio
async def test_checks_run_in_order_before_a_consumer_starts(app: App) -> None:
    steps: list[Any] = []
    app.provide(Warehouse, scope="app")

    @app.lifespan
    async def pool(app: App) -> AsyncIterator[str]:
        steps.append("lifespan")
        yield "state"

    @app.check
    async def the_warehouse_answers(warehouse: Depends[Warehouse], state: Depends[str], more: int = 1) -> None:
        assert warehouse.answers
        steps.append(state)

    @app.check(timeout="5s")
    def a_plain_one(it: Depends[App]) -> bool:
        steps.append((it is app, threading.current_thread() is threading.main_thread()))
        return True

    @app.consumer("orders")
    async def ship(number: int) -> None:
        steps.append(number)

    async with app:
        await app.publish("orders", "a", 1)
        async with running(app):
            await app.idle()
    assert steps == ["lifespan", "state", (True, False), 1]


@pytest.mark.asyncio
async def test_all_checks_run_and_all_failures_are_reported_and_no_consumer_is_declared(app: App) -> None:
    ends: list[str] = []

    @app.lifespan
    async def pool(app: App) -> AsyncIterator[str]:
        try:
            yield "state"
        finally:
            ends.append("lifespan")

    @app.check
    async def reachable() -> None:
        raise ConnectionRefusedError("port 5433")

    @app.check
    def large_enough() -> bool:
        return False

    @app.check
    async def fine() -> None: ...

    @app.check(timeout=0.02)
    async def quick() -> None:
        await anyio.sleep_forever()

    @app.check
    async def patient() -> None:
        raise TimeoutError("the warehouse took too long")

    @app.consumer("orders")
    async def ship() -> None: ...

    reason = (
        "4 of 5 startup checks failed:\n"
        "  reachable: ConnectionRefusedError: port 5433\n"
        "  large_enough: it returned False\n"
        "  quick: it took longer than 0.02 s\n"
        "  patient: TimeoutError: the warehouse took too long"
    )
    async with app:
        for start in (app.preflight, app.run, app.running().__aenter__):
            with pytest.raises(ConfigurationError) as caught:
                await start()
            assert str(caught.value) == reason
        assert await store.consumers(app.database) == []
    assert ends == ["lifespan"] * 3


@pytest.mark.asyncio
async def test_preflight_does_all_but_start_the_consumers(app: App) -> None:
    steps: list[str] = []

    @app.lifespan
    async def pool(app: App) -> AsyncIterator[None]:
        steps.append("begins")
        yield
        steps.append("ends")

    @app.check
    async def check() -> None:
        steps.append("checked")

    @app.consumer("orders")
    async def ship(number: int) -> None:
        steps.append("ran")

    async with app:
        await app.publish("orders", "a", 1)
        await app.preflight()
    assert steps == ["begins", "checked", "ends"]
    await work_off(app)
    assert steps == ["begins", "checked", "ends", "begins", "checked", "ran", "ends"]


@pytest.mark.asyncio
async def test_checks_take_only_dependencies_of_the_app(app: App) -> None:
    app.provide(Warehouse)

    @app.check
    async def check(warehouse: Depends[Warehouse]) -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        await app.preflight()
    assert str(caught.value) == (
        "The check 'check' takes Warehouse ('warehouse'), and Warehouse is created for each message: take a dependency with scope='app'."
    )


@pytest.mark.asyncio
async def test_dependencies_of_checks_must_be_provided(app: App) -> None:
    @app.check
    async def check(message: Depends[Message]) -> None: ...

    with pytest.raises(
        ConfigurationError,
        match=r"The check 'check' takes Message \('message'\), and Message is created for each message",
    ):
        await app.preflight()


def test_an_invalid_check_is_refused_where_it_is_declared() -> None:
    app = App("postgresql://nowhere")

    async def greedy(warehouse: Warehouse) -> None: ...
    async def endless() -> AsyncIterator[None]:
        yield

    with pytest.raises(
        ConfigurationError,
        match=r"'greedy' takes 'warehouse', which can't be provided\. Annotate it as a dependency, Depends\[…\]",
    ):
        app.check(greedy)
    with pytest.raises(ConfigurationError, match="The check 'endless' is a generator or no function"):
        app.check(endless)
    with pytest.raises(ConfigurationError, match="timeout"):
        app.check(timeout="soon")(greedy)
