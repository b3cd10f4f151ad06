"""Priority between the consumers of one process."""

from __future__ import annotations

import pytest

from headrace import App
from headrace.runtime.pipeline.timings import Timings
from tests.runtime.running import Gate, Seen, eventually, numbered, running


@pytest.fixture
def app(dsn: str) -> App:
    app = App(dsn)
    app._timings = Timings(sampling=0.005)
    return app


def actors(app: App, consumer: str) -> int:
    target: int = app.statistics()["consumers"][consumer]["target"]
    return target


async def until_actors(app: App, consumer: str, count: int) -> None:
    async def are_so_many() -> bool:
        return actors(app, consumer) == count

    await eventually(are_so_many)


def keys(count: int) -> list[str]:
    return [f"k{number}" for number in range(count)]


@pytest.mark.asyncio
async def test_while_a_higher_consumer_has_waiting_lanes_a_lower_one_keeps_to_its_minimum(app: App) -> None:
    urgent, usual = Gate(), Gate()

    @app.consumer("alarms", concurrency=1, priority=1)
    async def alarm() -> None:
        await urgent.wait()

    @app.consumer("orders", concurrency=(2, 8))
    async def ship() -> None:
        await usual.wait()

    async with running(app):
        await app.publish_many("orders", numbered(keys(40)))
        await usual.until(8)
        await app.publish_many("alarms", numbered(keys(3)))
        await urgent.until(1)
        await until_actors(app, "orders:ship", 2)
        assert app.statistics()["consumers"]["orders:ship"]["reason"] == "higher priority goes first"
        urgent.open()
        await until_actors(app, "orders:ship", 8)
        usual.open()
        await app.idle()


@pytest.mark.asyncio
async def test_a_lower_consumer_is_slowed_and_never_stopped(app: App) -> None:
    urgent, seen = Gate(), Seen()

    @app.consumer("alarms", concurrency=1, priority=1)
    async def alarm() -> None:
        await urgent.wait()

    @app.consumer("orders", concurrency=(1, 8))
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await app.publish_many("alarms", numbered(keys(3)))
        await urgent.until(1)
        await app.publish_many("orders", numbered(keys(50)))
        await seen.until(50)
        urgent.open()
        await app.idle()


@pytest.mark.asyncio
async def test_a_lower_consumer_holds_no_higher_one(app: App) -> None:
    usual, urgent = Gate(), Gate()

    @app.consumer("orders", concurrency=1)
    async def ship() -> None:
        await usual.wait()

    @app.consumer("alarms", concurrency=(1, 6), priority=1)
    async def alarm() -> None:
        await urgent.wait()

    async with running(app):
        await app.publish_many("orders", numbered(keys(5)))
        await usual.until(1)
        await app.publish_many("alarms", numbered(keys(20)))
        await urgent.until(6)
        urgent.open()
        usual.open()
        await app.idle()


@pytest.mark.asyncio
async def test_a_higher_consumer_that_is_drained_or_broken_holds_no_other(app: App) -> None:
    usual = Gate()

    @app.consumer("alarms", concurrency=1, priority=1, breaker=1)
    async def alarm() -> None:
        raise ValueError("away")

    @app.consumer("orders", concurrency=(1, 4))
    async def ship() -> None:
        await usual.wait()

    async with running(app):
        await app.publish_many("alarms", numbered(keys(20)))
        await app.publish_many("orders", numbered(keys(20)))
        await usual.until(4)
        usual.open()


@pytest.mark.asyncio
async def test_an_app_drains_while_one_is_held(app: App) -> None:
    urgent, seen = Gate(), Seen()

    @app.consumer("alarms", concurrency=1, priority=1)
    async def alarm() -> None:
        await urgent.wait()

    @app.consumer("orders", concurrency=(1, 8))
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await app.publish_many("alarms", numbered(keys(3)))
        await urgent.until(1)
        app.stop()
        urgent.open()


@pytest.mark.asyncio
async def test_without_different_priorities_no_consumer_is_checked(app: App) -> None:
    @app.consumer("alarms", priority=3)
    async def alarm() -> None: ...

    @app.consumer("orders", priority=3)
    async def ship() -> None: ...

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        assert app._service is not None
        assert [pipeline.actors.rank for pipeline in app._service.pipelines] == [None, None]
