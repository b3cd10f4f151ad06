"""Routers: consumers that modules declare without the app that runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace import App, ConfigurationError, Depends, Message, Router
from tests.runtime.running import Seen, running, work_off


async def nothing() -> None: ...


@pytest.mark.asyncio
async def test_an_app_runs_what_its_routers_declare(dsn: str) -> None:
    seen = Seen()
    inner, router = Router(), Router()

    @inner.consumer("orders", name="audit")
    async def audit(number: int, message: Message) -> None:
        seen.note(("audit", number, message.consumer))

    @router.consumer("orders")
    async def ship(number: int, place: Depends[str]) -> None:
        seen.note(("ship", number, place))

    router.include(inner)
    app = App(dsn)
    app.include(router)
    app.provide(lambda: "here", provides=str)
    await work_off(app, ("a", 1))
    assert sorted(seen.notes) == [("audit", 1, "audit"), ("ship", 1, "here")]


@pytest.mark.asyncio
async def test_the_middleware_of_a_router_runs_inside_that_of_the_app_and_around_its_handlers_only(dsn: str) -> None:
    steps: list[str] = []

    def noting(name: str) -> Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]:
        async def middleware(delivery: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
            steps.append(f"{name} {delivery.consumer}")
            return await call_next()

        return middleware

    router = Router()
    router.consumer("orders", name="ship", filter="a", middleware=[noting("own")])(nothing)
    router.middleware(noting("router"))  # also around what was declared above
    app = App(dsn)
    app.include(router)
    app.consumer("orders", name="other", filter="b")(nothing)
    app.middleware(noting("app"))
    await work_off(app, ("a", 1))
    await work_off(app, ("b", 1))
    assert steps == ["app ship", "router ship", "own ship", "app other"]


@pytest.mark.asyncio
async def test_streams_and_captures_are_taken_over(dsn: str) -> None:
    router = Router()
    router.stream("orders", retain_up_to="7d")
    router.capture("public.parcels", into="parcels")
    app = App(dsn, streams=["orders"])
    app.include(router)
    assert [spec.stream for spec in app.captures] == ["parcels"]
    app = App(dsn)
    router = Router()
    router.stream("orders", retain_up_to="7d")
    app.include(router)
    async with app:
        assert (await app.admin.stream("orders")).retain_up_to == 7 * 86400


def test_what_is_declared_twice_is_refused() -> None:
    first, second = Router(), Router()
    for router, days in ((first, "7d"), (second, "8d")):
        router.consumer("orders", name="ship")(nothing)
        router.stream("orders", retain_up_to=days)
    app = App("postgresql://nowhere")
    app.include(first)
    with pytest.raises(ConfigurationError, match=r"The stream 'orders' is declared twice, with different settings"):
        app.include(second)
    third = Router()
    third.consumer("orders", name="ship")(nothing)
    with pytest.raises(ConfigurationError, match=r"Two handlers of 'orders' are both called 'ship'"):
        app.include(third)


def test_what_would_never_run_is_refused() -> None:
    router = Router()
    router.consumer("orders", name="ship")(nothing)
    one, other = App("postgresql://nowhere"), App("postgresql://nowhere")
    one.include(router)
    other.include(router)  # such as an app of a test
    assert len(one.consumers) == len(other.consumers) == 1
    for late in (
        lambda: router.consumer("orders", name="late")(nothing),
        lambda: router.stream("late"),
        lambda: router.capture("public.late", into="late"),
        lambda: router.include(Router()),
    ):
        with pytest.raises(ConfigurationError, match=r"was included already.*Declare it above app\.include"):
            late()
    with pytest.raises(ConfigurationError, match=r"can't include itself"):
        (again := Router()).include(again)
    with pytest.raises(ConfigurationError, match=r"takes a headrace\.Router, not App"):
        one.include(other)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_router_can_be_included_before_its_app_is_connected_only_once_per_app(dsn: str) -> None:
    router = Router()
    router.consumer("orders", name="ship")(nothing)
    app = App(dsn)
    app.include(router)
    with pytest.raises(ConfigurationError, match="both called 'ship'"):
        app.include(router)
    async with running(app):
        pass
