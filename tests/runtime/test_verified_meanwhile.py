"""Leases are verified while others are settled or come: none is left in the store, and none is given up."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from headrace import App, store
from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec
from tests.runtime.running import Gate, Seen, consumer, eventually, pipeline_of, running, seek

pytestmark = pytest.mark.asyncio

SOON = 10.0
"""Seconds. A lease that is left in the store ends after 30."""


class Answers:
    """The answers of check-ins, which arrive late once `hold` was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._check_in = store.check_in
        self.gate: Gate | None = None
        monkeypatch.setattr(store, "check_in", self._late)

    def hold(self) -> Gate:
        self.gate = Gate()
        return self.gate

    async def _late(self, *args: Any, **named: Any) -> store.CheckIn:
        gate, self.gate = self.gate, None
        answer = await self._check_in(*args, **named)
        if gate is not None:
            await gate.wait()
        return answer


async def is_held_alone(app: App, seq: int) -> bool:
    """Whether a hold keeps the key of this message, and no other one."""
    held = "select exists (select from headrace_internal.leases where seqs = array[-$1::bigint])"
    return bool(await app.database.fetchval(held, seq))


async def became_hold_while_settled(app: App, monkeypatch: pytest.MonkeyPatch, answers: Answers, work: Gate) -> None:
    """Wait until the messages at `work` are settled, whose lease ends and becomes a hold at the same time."""
    in_flight, verifier = pipeline_of(app).in_flight, pipeline_of(app).fetcher._verifier
    settle, settled = store.settle, asyncio.Event()

    async def has_hold() -> bool:
        return any(lease.hold for lease in in_flight.leases.values())

    async def settle_meanwhile(*args: Any, **named: Any) -> Any:
        lost = await settle(*args, **named)
        if not settled.is_set():
            settled.set()
            await eventually(has_hold)
        return lost

    await seek(app, "ship")  # the lease ends
    late = answers.hold()
    verifying = asyncio.create_task(verifier.verify())
    await late.until(1)
    monkeypatch.setattr(store, "settle", settle_meanwhile)
    work.open()
    await settled.wait()
    late.open()
    await verifying


async def test_a_lease_that_becomes_a_hold_while_it_is_settled_is_not_left_in_the_store(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, seen, work, answers = App(dsn, streams=["orders"]), Seen(), Gate(), Answers(monkeypatch)

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)
        await work.wait()

    async with running(app):
        await app.publish("orders", "a", 1)
        await work.until(1)
        await became_hold_while_settled(app, monkeypatch, answers, work)
        with anyio.fail_after(SOON):
            await app.idle()
    assert seen.notes == [1, 1]


async def test_a_message_that_is_settled_while_its_lease_becomes_a_hold_is_no_part_of_the_hold(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, seen, answers = App(dsn, streams=["orders"]), Seen(), Answers(monkeypatch)
    work = {1: Gate(), 2: Gate()}

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)
        await work[number].wait()

    async with running(app):
        await app.publish_many("orders", [("a", 1), ("b", 2)])
        for gate in work.values():
            await gate.until(1)
        await became_hold_while_settled(app, monkeypatch, answers, work[1])
        with anyio.fail_after(SOON):
            await eventually(lambda: is_held_alone(app, 2))
        work[2].open()
        await app.idle()
    assert sorted(seen.notes) == [1, 1, 2, 2]


async def test_a_lease_that_comes_while_others_are_verified_stays(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, seen, work, answers = App(dsn, streams=["orders"]), Seen(), Gate(), Answers(monkeypatch)

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)
        await work.wait()

    async with running(app):
        await app.idle()
        late = answers.hold()
        verifying = asyncio.create_task(pipeline_of(app).fetcher._verifier.verify())
        await late.until(1)
        await app.publish("orders", "a", 1)
        await work.until(1)
        late.open()
        await verifying
        work.open()
        with anyio.fail_after(SOON):
            await app.idle()
        assert app.statistics()["consumers"]["orders:ship"]["lost"] == 0
    assert seen.notes == [1]


async def test_a_lease_that_is_released_before_its_call_has_returned_is_not_taken(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, seen, lease, check_in = App(dsn, streams=["orders"]), Seen(), store.lease, store.check_in
    asked, leased, released = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)

    async def has_returned() -> bool:
        await anyio.lowlevel.checkpoint()
        return not pipeline_of(app).fetcher._under_way

    async def late_lease(*args: Any, **named: Any) -> Batch:
        batch = await lease(*args, **named)
        if batch.lease_id is not None:
            leased.set()
            await released.wait()
        return batch

    async def check_in_meanwhile(*args: Any, **named: Any) -> store.CheckIn:
        if not asked.is_set():
            asked.set()
            await leased.wait()
            return await check_in(*args, **named)
        answer = await check_in(*args, **named)
        if not released.is_set():
            released.set()
            await eventually(has_returned)
        return answer

    async with running(app):
        await app.idle()
        monkeypatch.setattr(store, "lease", late_lease)
        monkeypatch.setattr(store, "check_in", check_in_meanwhile)
        verifying = asyncio.create_task(pipeline_of(app).fetcher._verifier.verify())
        await asked.wait()
        await app.publish("orders", "a", 1)
        await verifying
        with anyio.fail_after(SOON):
            await app.idle()
        assert app.statistics()["consumers"]["orders:ship"]["lost"] == 0
    assert seen.notes == [1]


async def test_a_lease_that_is_released_while_new_settings_are_read_is_not_taken(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, seen, reading, consumer_spec = App(dsn, streams=["orders"]), Seen(), Gate(), store.consumer_spec

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)

    async def late(*args: Any) -> tuple[ConsumerSpec, int]:
        found = await consumer_spec(*args)
        await reading.wait()
        return found

    async with running(app):
        await app.idle()
        monkeypatch.setattr(store, "consumer_spec", late)
        async with app.transaction() as tx:  # no lease call sees one without the other
            await tx.execute("select pg_advisory_xact_lock(1212498508, $1)", pipeline_of(app).consumer)
            await store.declare_consumer(tx, ConsumerSpec(stream="orders", name="ship", max_deliver=7))
            await tx.publish("orders", "a", 1)
        await reading.until(1)
        assert (await consumer(app, "ship")).in_flight == 1
        await pipeline_of(app).fetcher._verifier.verify()
        reading.open()
        with anyio.fail_after(SOON):
            await app.idle()
        assert app.statistics()["consumers"]["orders:ship"]["lost"] == 0
    assert seen.notes == [1]
