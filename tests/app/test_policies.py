"""Settings of streams and consumers that an app declares, in a running app."""

from __future__ import annotations

import logging
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import App, ConfigurationError, InvalidFilter, InvalidInput, Message, field, store
from headrace.runtime.leasing.timings import LeaseTimings
from headrace.runtime.pipeline.timings import Timings
from tests.runtime.running import Gate, Seen, consumer, dead_letters, eventually, running, work_off
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio


async def settings(app: App, name: str = "orders") -> Any:
    return await store.stream(app.database, name)


async def test_a_stream_is_created_as_it_is_declared(app: App) -> None:
    assert app.stream("kept", retain_up_to="7d", max_storage=10**9, retain_at_least="1d", dedupe_window="5m") == "kept"
    async with app:
        kept = await settings(app, "kept")
        assert (kept.retain_up_to, kept.retain_at_least, kept.max_storage) == (7 * 86400, 86400, 10**9)
        assert kept.dedupe_window == 300


async def test_a_different_declaration_changes_the_stream(dsn: str) -> None:
    for age in ("7d", "3d"):
        app = App(dsn)
        app.stream("kept", retain_up_to=age)
        async with app:
            assert (await settings(app, "kept")).retain_up_to == int(age[0]) * 86400


async def test_a_stream_declared_by_name_alone_stays_as_it_is(dsn: str) -> None:
    first = App(dsn)
    first.stream("kept", retain_up_to="7d")
    async with first:
        pass
    second = App(dsn)
    second.stream("kept")
    async with second:
        assert (await settings(second, "kept")).retain_up_to == 7 * 86400


_CONTRADICTIONS: list[dict[str, Any]] = [
    {"retain_up_to": "1h", "retain_at_least": "2h"},
    {"retention": "interest", "retain_up_to": "1h"},
    {"retention": "never"},
    {"retain_up_to": 0},
    {"max_storage": 10},
    {"dedupe": True},
    {"tombstones": True},
]


async def test_policies_that_contradict_themselves_are_refused(app: App) -> None:
    for wrong in _CONTRADICTIONS:
        with pytest.raises(ConfigurationError):
            app.stream("kept", **wrong)


@pytest.mark.parametrize(
    "where", ["data.total > 10", {"field": "data.total", "op": ">", "value": 10}, field("total") > 10]
)
async def test_a_handler_receives_the_messages_that_meet_its_condition(app: App, where: Any) -> None:
    seen = Seen()

    @app.consumer("orders", where=where)
    async def ship(message: Message) -> None:
        seen.note(message.seq)

    await work_off(app, ("a", {"total": 5}), ("a", {"total": 50}), ("b", {}), ("b", {"total": 10.5}), ("b", [1]))
    assert sorted(seen.notes) == [2, 4]


async def test_a_wrong_condition_is_refused_when_it_is_declared(app: App) -> None:
    with pytest.raises(InvalidFilter):

        @app.consumer("orders", where="data.total >")
        async def ship() -> None: ...


async def test_a_condition_that_takes_too_long_is_named_and_stops_nothing_else(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    app._timings = Timings(leasing=LeaseTimings(judging=0.2))
    seen = Seen()

    @app.consumer("orders", where="data.text regex '[ab]*a[ab]{30}c'")
    async def slow() -> None: ...

    @app.consumer("orders")
    async def quick(message: Message) -> None:
        seen.note(message.seq)

    async with running(app):
        await app.publish(
            "orders", "a", {"text": random.Random(7).randbytes(5_000_000).translate(b"ab" * 128).decode()}
        )
        await seen.until(1)
        await eventually(lambda: _logged(caplog, "condition too slow", "slow"))
        app.stop()


async def _logged(caplog: pytest.LogCaptureFixture, event: str, consumer: str) -> bool:
    return bool(logged(caplog, event, consumer=consumer))


async def test_settings_that_change_while_it_runs_count_at_once(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace")
    gate = Gate()

    @app.consumer("orders", max_ack_pending=2, max_deliver=1)
    async def ship(order: int) -> None:
        await gate.wait()
        raise RuntimeError(order)

    async with running(app):
        await app.publish_many("orders", [(str(n), n) for n in range(5)])
        await gate.until(2)
        await app.admin.edit_consumer("orders", "ship", max_ack_pending=5)
        await app.publish("orders", "5", 5)
        await gate.until(5)
        assert logged(caplog, "settings changed", consumer="ship")
        gate.open()
        await app.idle()
        assert len(await dead_letters(app, "ship")) == 6


async def test_a_paused_consumer_leases_nothing_until_it_is_resumed(app: App) -> None:
    seen = Seen()

    @app.consumer("orders")
    async def ship(order: int) -> None:
        seen.note(order)

    async with app:
        await store.create_stream(app.database, "orders")
        await app.admin.create_consumer(app.consumers[0].spec)
        await app.admin.pause("orders", "ship")
        async with running(app):
            await app.publish("orders", "a", 1)
            await app.idle()
            assert seen.notes == []
            await app.admin.resume("orders", "ship")
            assert await seen.until(1) == [1]


async def test_a_message_with_a_delay_comes_when_it_is_due(app: App) -> None:
    seen = Seen()

    @app.consumer("orders")
    async def ship(order: int) -> None:
        seen.note(order)

    async with running(app):
        assert await app.publish("orders", "a", 1, delay="1h") is None
        assert await app.publish("orders", "a", 2) == 1
        await app.publish("orders", "a", 3, delay=0.05)
        assert await seen.until(2) == [2, 3]


async def test_many_messages_with_ids_and_a_time(app: App) -> None:
    async with app:
        later = datetime.now(UTC) + timedelta(days=1)
        pairs = [("a", 1), ("b", 2)]
        assert await app.publish_many("orders", pairs, message_ids=["x", "y"]) == 2
        assert await app.publish_many("orders", pairs, message_ids=["x", "z"], deliver_at=later) == 1
        assert await app.publish("orders", "a", 3, message_id="x") == 1
        with pytest.raises(InvalidInput, match="message_ids"):
            await app.publish_many("orders", pairs, message_ids=["x"])
        with pytest.raises(ConfigurationError, match="choose one"):
            await app.publish("orders", "a", 1, delay=1, deliver_at=later)
        with pytest.raises(ConfigurationError):
            await app.publish("orders", "a", 1, delay="soon")


async def test_a_new_consumer_begins_at_its_deliver_policy(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", deliver_policy="last_per_key")
    async def ship(order: int) -> None:
        seen.note(order)

    async with app:
        await app.publish_many("orders", [("a", 1), ("b", 2), ("a", 3)])
        async with running(app):
            await app.idle()
            await app.publish("orders", "b", 4)
            await app.idle()
        assert sorted(seen.notes) == [2, 3, 4]
        assert (await consumer(app, "ship")).lag == 0
