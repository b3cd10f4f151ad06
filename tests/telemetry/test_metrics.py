"""The values of metrics after a run with known counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest

from headrace import App, Message, Reject, Telemetry, UnknownStream
from headrace.flow.governor import Decision
from headrace.model.watching.reasons import REASONS, Reason
from headrace.runtime.maintenance.survey import Survey
from headrace.telemetry.metering import MAX_INTERVAL, MAX_SAMPLES, WINDOW, MeasuredSample
from tests.runtime.running import Gate, eventually, numbered, parked, running, seek
from tests.telemetry.recorded import Recorded


@pytest.fixture
def recorded() -> Recorded:
    return Recorded(traces=False)


@pytest.fixture
def app(dsn: str, recorded: Recorded) -> App:
    return App(dsn, streams=["orders"], telemetry=recorded.telemetry)


@pytest.mark.asyncio
async def test_the_outcomes_of_messages_are_counted(app: App, recorded: Recorded) -> None:
    @app.consumer("orders", backoff=0, max_deliver=2)
    async def ship(number: int, message: Message) -> None:
        if number == 2:
            raise Reject("not this one")
        if number == 3 and message.attempt == 1:
            raise ValueError("not yet")
        if number == 4:
            raise ValueError("never")

    async with running(app):
        await app.publish_many("orders", numbered("abcdef"))
        await app.idle()
        names = ("acked", "nacked", "dead_lettered", "lost", "held")
        values = {name: recorded.value(f"headrace.consumer.{name}") for name in names}
        leased = recorded.value("messaging.client.consumed.messages")
    assert values == {"acked": 4, "nacked": 4, "dead_lettered": 2, "lost": 0, "held": 0}
    assert leased >= 8


@pytest.mark.asyncio
async def test_each_consumer_has_its_own_counts(app: App, recorded: Recorded) -> None:
    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    @app.consumer("orders", filter="a")
    async def bill(number: int) -> None: ...

    async with running(app):
        await app.publish_many("orders", numbered("abc"))
        await app.idle()
        points = {
            point.attributes["messaging.consumer.group.name"]: (dict(point.attributes), point.value)
            for point in recorded.points("headrace.consumer.acked")
        }
    common = {"messaging.system": "headrace", "messaging.destination.name": "orders"}
    assert points == {
        "ship": ({**common, "messaging.consumer.group.name": "ship"}, 3),
        "bill": ({**common, "messaging.consumer.group.name": "bill"}, 1),
    }


@pytest.mark.asyncio
async def test_an_exhausted_message_that_is_dropped_is_no_dead_letter(app: App, recorded: Recorded) -> None:
    @app.consumer("orders", max_deliver=1, on_exhausted="drop")
    async def ship(number: int) -> NoReturn:
        raise ValueError("never")

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        assert recorded.value("headrace.consumer.nacked") == 1
        assert recorded.value("headrace.consumer.dead_lettered") == 0


@pytest.mark.asyncio
async def test_messages_that_lost_their_lease_are_counted(app: App, recorded: Recorded) -> None:
    gate = Gate()

    @app.consumer("orders", concurrency=1)
    async def ship(number: int) -> None:
        await gate.wait()

    async with running(app):
        await app.publish("orders", "a", 1)
        await gate.until(1)
        await seek(app, "ship", 0)  # this takes the lease away
        gate.open()
        await app.idle()
        assert recorded.value("headrace.consumer.lost") == 1


@pytest.mark.asyncio
async def test_published_messages_are_counted_and_those_that_failed_by_their_error(
    app: App, recorded: Recorded
) -> None:
    async with app:
        await app.publish("orders", "a", 1)
        await app.publish_many("orders", numbered("bcd"))
        with pytest.raises(UnknownStream):
            await app.publish("nowhere", "a", 1)
    assert recorded.value("messaging.client.sent.messages", name="orders") == 4
    assert recorded.value("messaging.client.sent.messages", type="headrace.UnknownStream") == 1


@pytest.mark.asyncio
async def test_operations_and_handlers_are_timed(app: App, recorded: Recorded) -> None:
    @app.consumer("orders", max_deliver=1)
    async def ship(number: int) -> None:
        raise ValueError("never")

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
    operations = {
        point.attributes["messaging.operation.name"]: point.count
        for point in recorded.points("messaging.client.operation.duration")
    }
    assert operations == {"publish": 1, "lease": 1, "settle": 1}
    (handled,) = recorded.points("messaging.process.duration")
    assert (handled.count, handled.attributes["error.type"]) == (1, "ValueError")
    assert handled.sum > 0


@pytest.mark.asyncio
async def test_messages_in_work_are_shown_while_they_are(app: App, recorded: Recorded) -> None:
    gate = Gate()

    @app.consumer("orders", concurrency=3)
    async def ship(number: int) -> None:
        await gate.wait()

    async with running(app):
        await app.publish_many("orders", numbered("ab"))
        await gate.until(2)
        names = ("held", "concurrency", "concurrency.target", "concurrency.busy")
        assert [recorded.value(f"headrace.consumer.{name}") for name in names] == [2, 3, 3, 2]
        gate.open()
        await app.idle()
        assert recorded.value("headrace.consumer.held") == 0


@pytest.mark.asyncio
async def test_the_code_of_the_governors_reason_shows_without_its_numbers(app: App, recorded: Recorded) -> None:
    @app.consumer("orders", concurrency=7)
    async def ship(number: int) -> None: ...

    async with running(app):
        assert recorded.value("headrace.consumer.concurrency.reason", reason="fixed") == 1
        assert app._service is not None
        app._service.pipelines[0].governor.decision = Decision(7, Reason.of("idle", 1234))
        assert recorded.value("headrace.consumer.concurrency.reason", reason="idle") == 1
        assert app.statistics()["consumers"]["orders:ship"]["reason"] == "at most 1234 had work"


def test_each_reason_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
    shown = set(REASONS) - {"deleted"}  # a deleted consumer has no metrics
    assert {code for code in shown if f"| `{code}` |" not in page} == set()


@pytest.mark.asyncio
async def test_an_open_breaker_shows(app: App, recorded: Recorded) -> None:
    @app.consumer("orders", breaker=1, backoff=3600)
    async def ship(number: int) -> NoReturn:
        raise ValueError("downstream is away")

    @app.consumer("orders")
    async def bill(number: int) -> None: ...

    async def opened() -> bool:
        return bool(recorded.value("headrace.consumer.breaker", name="ship"))

    async with running(app):
        assert recorded.value("headrace.consumer.breaker") == 0
        await app.publish("orders", "a", 1)
        await eventually(opened)


@pytest.mark.asyncio
async def test_lag_and_what_is_parked_are_as_the_last_survey_found_them(app: App, recorded: Recorded) -> None:
    gate = Gate()

    @app.consumer("orders", backoff=3600, concurrency=1, max_ack_pending=1)
    async def ship(number: int) -> None:
        if number == 1:
            raise ValueError("later")
        await gate.wait()

    async with running(app):
        await app.publish_many("orders", numbered("abc"))
        await gate.until(1)
        await eventually(lambda: parked(app))
        await app.database.fetchval(
            "update headrace_streams.orders set created_at = created_at - interval '1 hour' where seq = 1"
        )
        survey = Survey(app.database, [("orders", "ship"), ("orders", "deleted")], app._instruments)
        await survey.once()
        names = ("lag.messages", "pending", "in_flight", "parked", "blocked", "dead_letters")
        found = {name: recorded.value(f"headrace.consumer.{name}") for name in names}
        age = recorded.value("headrace.consumer.lag.time")
        gate.open()
    assert found == {"lag.messages": 1, "pending": 2, "in_flight": 1, "parked": 1, "blocked": 0, "dead_letters": 0}
    assert age >= 3600


@pytest.mark.asyncio
async def test_a_consumer_surveys_itself_as_often_as_its_setting_says(dsn: str, recorded: Recorded) -> None:
    app = App(dsn, telemetry=Telemetry(traces=None, metrics=recorded.meters, survey=0.1))

    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    async def surveyed() -> list[object]:
        return recorded.points("headrace.consumer.lag.time")

    async with running(app):
        await eventually(surveyed)
        assert recorded.value("headrace.consumer.lag.time") == 0


@pytest.mark.asyncio
async def test_connections_waits_and_round_trips_show(app: App, recorded: Recorded) -> None:
    @app.consumer("orders")
    async def ship(number: int) -> None: ...

    async with running(app):
        await app.publish("orders", "a", 1)
        await app.idle()
        assert recorded.value("db.client.connection.max") == 10
        assert (
            recorded.value("db.client.connection.count", state="idle")
            + recorded.value("db.client.connection.count", state="used")
            >= 1
        )
        assert recorded.value("headrace.postgres.round_trips") >= 3
        assert recorded.value("headrace.pool.waits") >= 0
        assert recorded.value("headrace.pool.wait_time") >= 0
        assert recorded.value("headrace.event_loop.blocked_time") >= 0


@pytest.mark.asyncio
async def test_apps_that_come_and_go_share_the_instruments_of_a_provider(dsn: str, recorded: Recorded) -> None:
    for count in (1, 2):
        app = App(dsn, streams=["orders"], telemetry=recorded.telemetry)

        @app.consumer("orders", name=f"ship{count}")
        async def ship(number: int) -> None: ...

        async with running(app):
            await app.publish("orders", "a", 1)
            await app.idle()
            (point,) = recorded.points("headrace.consumer.acked")
            assert (point.attributes["messaging.consumer.group.name"], point.value) == (f"ship{count}", count)
    assert recorded.points("headrace.consumer.acked") == []


# --- which handlers are measured


def test_every_handler_is_measured_while_there_are_few() -> None:
    sample = MeasuredSample()
    assert [len(sample.choose(1, second / (MAX_SAMPLES / 2))) for second in range(1, 50)] == [1] * 49


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_bounded_share_of_many_handlers_is_measured(size: int) -> None:
    sample, rate = MeasuredSample(), MAX_SAMPLES * 20
    measured = sum(len(sample.choose(size, number * size / rate)) for number in range(int(rate * 10 / size)))
    assert MAX_SAMPLES * 10 * 0.4 <= measured <= MAX_SAMPLES * 10 * 1.1 + size


def test_some_handlers_are_measured_for_every_number_of_handlers() -> None:
    sample = MeasuredSample()
    measured = [number * 1000 + place for number in range(100) for place in sample.choose(1000, number * 1e-6)]
    assert all(later - earlier <= MAX_INTERVAL for earlier, later in pairwise(measured))
    assert len(measured) < 2 * 100_000 / MAX_INTERVAL


def test_the_rhythm_slows_down_with_the_handlers() -> None:
    sample = MeasuredSample()
    for number in range(100):
        sample.choose(1000, number * 0.01)
    sample.choose(1, 2.0)
    assert [len(sample.choose(1, 2.0 + WINDOW * number)) for number in (1, 2, 3)] == [1, 1, 1]


def test_an_age_is_never_negative() -> None:
    from headrace.telemetry.observables import age

    class Info:
        oldest_unacked_at = datetime.now(UTC) + timedelta(hours=1)

    assert age(Info()) == 0  # type: ignore[arg-type]
