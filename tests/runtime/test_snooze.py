"""Snooze: a message is redelivered later, in the order of its key, and no attempt is counted."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from headrace import App, Batch, ConfigurationError, Message, Snooze, store
from headrace.admin import Admin
from headrace.model.errors import InvalidInput
from headrace.model.specs import ConsumerSpec
from tests.runtime.running import Seen, dead_letters, eventually, make_due, numbered, parked, running, work_off


async def snoozed_for_an_hour(app: App) -> bool:
    """Whether message 1 is parked for an hour, with no attempt counted."""
    return any(
        seq == 1 and attempts == 0 and due_in is not None and due_in > 3000
        for seq, attempts, due_in in await parked(app)
    )


@pytest.mark.parametrize("way", ["raised", "returned", "called"])
@pytest.mark.asyncio
async def test_a_snoozed_message_comes_later_and_holds_its_key_alone(
    app: App, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen, snoozed = Seen(), [True]

    @app.consumer("orders", max_deliver=1, breaker=1, concurrency=1)
    async def ship(number: int, message: Message) -> Any:
        seen.note((number, message.attempt))
        if number == 1 and snoozed[0]:
            if way == "raised":
                raise Snooze("1h")
            if way == "returned":
                return Snooze(3600)
            await message.snooze("1h")
        return None

    caplog.set_level(logging.WARNING, "headrace")
    async with running(app):
        await app.publish_many("orders", numbered("aab"))
        assert sorted(await seen.until(2)) == [(1, 1), (3, 1)]
        for times in range(3):
            await eventually(lambda: snoozed_for_an_hour(app))
            await make_due(app)
            await seen.until(3 + times)
        await eventually(lambda: snoozed_for_an_hour(app))
        snoozed[0] = False
        await make_due(app)
        await seen.until(7)
        assert await dead_letters(app, "ship") == []
    assert seen.notes[2:] == [(1, 1), (1, 1), (1, 1), (1, 1), (2, 1)]
    assert not [
        record for record in caplog.records if "failed" in record.getMessage() or "breaker" in record.getMessage()
    ]


@pytest.mark.asyncio
async def test_messages_of_a_batch_are_snoozed_one_by_one_or_together(app: App) -> None:
    calls: list[list[tuple[int, int]]] = []

    @app.consumer("orders", batch=10, batch_timeout=0.1, max_deliver=1, on_batch_error="bisect", concurrency=1)
    async def load(batch: Batch) -> None:
        calls.append([(message.data, message.attempt) for message in batch])
        if len(calls) == 1:
            raise Snooze(0)
        if len(calls) == 2:
            batch.snooze(batch[0], 0)

    await work_off(app, *numbered("aab"))
    assert calls[:2] == [[(1, 1), (2, 1), (3, 1)]] * 2
    assert calls[2:] == [[(1, 1), (2, 1)]]


@pytest.mark.asyncio
async def test_a_client_snoozes_what_it_has_received(database: store.Database) -> None:
    admin = Admin(database)
    await admin.create_stream("orders")
    await admin.create_consumer(ConsumerSpec(stream="orders", name="ship", max_deliver=1))
    await admin.send("orders", "a", "1")
    for _ in range(3):
        (received,) = await admin.receive("orders", "ship")
        assert received.attempt == 1
        for wrong in ({}, {"delay": 0, "error": "broken"}):
            with pytest.raises(InvalidInput, match="needs a delay"):
                await admin.nack("orders", "ship", [received.ack_id], snooze=True, **wrong)
        assert await admin.nack("orders", "ship", [received.ack_id], delay=0, snooze=True) == []
    assert await admin.dead_letters("orders", "ship") == []


def test_a_snooze_crosses_processes_as_it_is() -> None:
    copy = pickle.loads(pickle.dumps(Snooze("30s", "too early")))
    assert (type(copy), copy.after, str(copy)) == (Snooze, 30.0, "too early")


@pytest.mark.parametrize("delay", ["later", None, -1, float("nan")])
def test_a_delay_that_is_none_is_refused(delay: Any) -> None:
    with pytest.raises(ConfigurationError, match="after"):
        Snooze(delay)
