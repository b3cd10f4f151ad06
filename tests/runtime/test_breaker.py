"""The circuit breaker in a running consumer: which messages are leased and released, and which attempts count."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from headrace import App, Breaker, Message, Reject
from tests.runtime.running import Gate, Seen, consumer, dead_letters, eventually, numbered, parked, running
from tests.support.logs import logged

HOUR = 3600.0


def breaker(app: App, name: str = "ship") -> dict[str, object]:
    found: dict[str, object] = app.statistics()["consumers"][f"orders:{name}"]["breaker"]
    return found


async def until_state(app: App, state: str) -> None:
    async def is_so() -> bool:
        return breaker(app)["state"] == state

    await eventually(is_so)


async def until_released(app: App) -> None:
    async def is_so() -> bool:
        return (await consumer(app, "ship")).in_flight == 0

    await eventually(is_so)


@asynccontextmanager
async def opened(app: App, keys: str = "abcdefgh") -> AsyncIterator[None]:
    """Run the app on a message for each key, until the breaker is open and all messages are released."""
    async with running(app):
        await app.publish_many("orders", numbered(keys))
        await until_state(app, "open")
        await until_released(app)
        yield


@pytest.mark.asyncio
async def test_after_failures_in_a_row_nothing_is_leased_and_waiting_messages_are_released_uncounted(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", concurrency=1, breaker=Breaker(failures=3, pause=HOUR, longest=HOUR))
    async def ship(message: Message) -> None:
        seen.note(message.key)
        raise ValueError("the warehouse is away")

    async with opened(app):
        assert len(seen.notes) == 3
        state = breaker(app)
        assert (state["failures"], state["reason"]) == (3, "ValueError: the warehouse is away")
        assert HOUR - 60 < float(str(state["probe_in"])) <= HOUR
        attempts = [row["attempts"] for row in await parked(app)]
        assert attempts.count(1) == 3
        assert attempts.count(0) == len(attempts) - 3 > 0
        await app.publish("orders", "z", 9)
    assert len(seen.notes) == 3


@pytest.mark.asyncio
async def test_an_ack_between_failures_keeps_it_closed(app: App) -> None:
    @app.consumer("orders", concurrency=1, max_deliver=1, breaker=Breaker(failures=2, pause=HOUR, longest=HOUR))
    async def ship(number: int) -> None:
        if number % 2:
            raise ValueError("an odd one")

    async with running(app):
        await app.publish_many("orders", numbered("abcdefghij"))
        await app.idle()
        assert breaker(app)["state"] == "closed"
        assert len(await dead_letters(app, "ship")) == 5


@pytest.mark.asyncio
async def test_rejections_and_payloads_that_do_not_fit_keep_it_closed(app: App) -> None:
    @app.consumer("orders", concurrency=1, breaker=2)
    async def ship(number: int) -> None:
        raise Reject("no")

    async with running(app):
        await app.publish_many("orders", [*numbered("abcd"), ("e", "not a number"), ("f", "nor this")])
        await app.idle()
        assert breaker(app)["state"] == "closed"


@pytest.mark.asyncio
async def test_a_probe_that_is_acked_closes_it_and_all_is_handled(app: App, caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()
    away = True

    @app.consumer("orders", concurrency=4, backoff=0, breaker=Breaker(failures=2, pause=0.05))
    async def ship(number: int) -> None:
        if away:
            raise ValueError("away")
        seen.note(number)

    with caplog.at_level(logging.INFO, "headrace"):
        async with running(app):
            await app.publish_many("orders", numbered("abcdefgh"))
            await until_state(app, "open")
            away = False
            await app.idle()
            assert breaker(app)["state"] == "closed"
    assert sorted(seen.notes) == list(range(1, 9))
    assert logged(caplog, "circuit breaker opened", consumer="ship")
    assert len(logged(caplog, "circuit breaker closed", consumer="ship")) == 1


@pytest.mark.asyncio
async def test_probes_cost_no_attempts_and_are_never_exhausted(app: App) -> None:
    attempts: list[int] = []
    away = True

    @app.consumer(
        "orders", concurrency=1, backoff=0, max_deliver=2, breaker=Breaker(failures=1, pause=0.001, longest=0.001)
    )
    async def ship(message: Message) -> None:
        nonlocal away
        attempts.append(message.attempt)
        if len(attempts) >= 8:
            away = False
        if away:
            raise ValueError("away")

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        assert await dead_letters(app, "ship") == []
    assert attempts == [1, *[2] * 7]


@pytest.mark.asyncio
async def test_a_probe_that_fails_lets_another_message_be_the_next(app: App) -> None:
    probed: list[str] = []

    @app.consumer("orders", concurrency=1, backoff="1h", breaker=Breaker(failures=1, pause=0.001))
    async def ship(message: Message) -> None:
        probed.append(message.key)
        if message.key in "ab":
            raise ValueError("a poison of its own")

    async with running(app):
        await app.publish_many("orders", numbered("abcd"))

        async def are_handled() -> bool:
            return set("cd") <= set(probed)

        await eventually(are_handled)
    assert probed[0] == "a"


@pytest.mark.asyncio
async def test_handlers_that_run_when_it_opens_finish_and_lose_no_attempt(app: App) -> None:
    gate, seen = Gate(), Seen()

    @app.consumer("orders", concurrency=3, breaker=Breaker(failures=1, pause=HOUR, longest=HOUR))
    async def ship(number: int) -> None:
        if number > 1:
            await gate.wait()
        else:
            await gate.until(2)
        if number < 3:
            raise ValueError("away")
        seen.note(number)

    async with running(app):
        await app.publish_many("orders", numbered("abc"))
        await until_state(app, "open")
        gate.open()
        await seen.until(1)
        await until_released(app)
        assert sorted((row["seq"], row["attempts"]) for row in await parked(app)) == [(1, 1), (2, 0)]
        assert (await consumer(app, "ship")).lag == 0


@pytest.mark.asyncio
async def test_a_batch_that_fails_is_one_failure(app: App) -> None:
    @app.consumer("orders", batch=10, concurrency=1, breaker=Breaker(failures=2, pause=HOUR, longest=HOUR))
    async def ship(numbers: list[int]) -> None:
        raise ValueError("away")

    async with running(app):
        await app.publish_many("orders", numbered("abcde"))
        await eventually(lambda: _parked_after_one_attempt(app, 5))
        assert breaker(app)["state"] == "closed"
        await app.publish_many("orders", numbered("vwxyz"))
        await until_state(app, "open")


async def _parked_after_one_attempt(app: App, count: int) -> bool:
    return [row["attempts"] for row in await parked(app)] == [1] * count


@pytest.mark.asyncio
async def test_a_consumer_is_quiet_while_its_breaker_is_open(app: App) -> None:
    @app.consumer("orders", concurrency=1, breaker=Breaker(failures=1, pause=HOUR, longest=HOUR))
    async def ship() -> None:
        raise ValueError("away")

    async with opened(app, "ab"):
        assert app._service is not None
        await app._service.pipelines[0].fetcher.until_idle()
        assert breaker(app)["state"] == "open"


@pytest.mark.asyncio
async def test_an_app_drains_at_once_with_an_open_breaker(app: App) -> None:
    @app.consumer("orders", concurrency=1, breaker=Breaker(failures=1, pause=HOUR, longest=HOUR))
    async def ship() -> None:
        raise ValueError("away")

    async with opened(app, "ab"):
        pass
    async with app:
        assert (await consumer(app, "ship")).in_flight == 0


@pytest.mark.asyncio
async def test_an_app_drains_while_a_probe_is_at_work(app: App) -> None:
    gate = Gate()
    failed = anyio.Event()

    @app.consumer("orders", concurrency=1, backoff=0, breaker=Breaker(failures=1, pause=0.001))
    async def ship() -> None:
        if not failed.is_set():
            failed.set()
            raise ValueError("away")
        await gate.wait()

    async with running(app):
        await app.publish("orders", "a", 1)
        await gate.until(1)
        assert breaker(app)["state"] == "half-open"
        app.stop()
        gate.open()
    async with app:
        info = await consumer(app, "ship")
        assert (info.in_flight, info.parked, info.lag) == (0, 0, 0)
