"""Leases in a worker: extended, lost, and leased by a call without an answer."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from headrace import App, LeaseLost, Message, StoreUnavailable, store
from headrace.model.outcomes import Settlement
from headrace.model.records import Batch, Lost
from headrace.model.specs import ConsumerSpec
from tests.runtime.running import Gate, Seen, consumer, eventually, numbered, running, seek
from tests.support.logs import logged


def statistics(app: App) -> dict[str, Any]:
    found: dict[str, Any] = app.statistics()["consumers"]["orders:ship"]
    return found


async def settled_everything(app: App) -> None:
    """Check that no lease, parked message or dead letter is left, and no message is held."""
    info = await consumer(app, "ship")
    assert (info.lag, info.in_flight, info.parked, info.dead_letters) == (0, 0, 0, 0)
    held = statistics(app)
    assert (held["held"], held["leases"], held["waiting"], held["closed"]) == (0, 0, 0, 0)


@pytest.mark.asyncio
async def test_leases_are_extended_while_a_handler_takes_longer_than_ack_wait(app: App) -> None:
    """Messages that wait behind it are still leased when their turn comes."""
    attempts: list[tuple[int, int]] = []

    async def expiry() -> float:
        found: float = await app.database.fetchval(
            "select extract(epoch from min(expires_at))::float8 from headrace_internal.leases"
        )
        return found

    @app.consumer("orders", ack_wait="1.5s")
    async def ship(number: int, message: Message) -> None:
        attempts.append((number, message.attempt))
        if number == 1:
            first, deadline = await expiry(), message.lease.deadline
            while await expiry() < first + 1.2 or message.lease.deadline < deadline + 1.2:
                await anyio.lowlevel.checkpoint()

    async with running(app):
        await app.publish_many("orders", numbered("aaa"))
        await app.idle()
        await settled_everything(app)
    assert attempts == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.asyncio
async def test_leases_end_no_sooner_after_an_edit_to_a_longer_ack_wait(app: App) -> None:
    """They are extended at the time that was planned before the edit."""
    gate = Gate()
    attempts: list[tuple[int, int]] = []

    async def is_extended() -> bool:
        lowest = "select min(expires_at) > clock_timestamp() + interval '10 minutes' from headrace_internal.leases"
        return bool(await app.database.fetchval(lowest))

    @app.consumer("orders", ack_wait="3s")
    async def ship(number: int, message: Message) -> None:
        attempts.append((number, message.attempt))
        if number == 1:
            await gate.wait()

    async with running(app):
        await app.publish("orders", "a", 1)
        await gate.until(1)
        await store.declare_consumer(app.database, ConsumerSpec(stream="orders", name="ship", ack_wait=3600))
        await app.publish("orders", "b", 2)  # with its lease call, the process learns of the edit
        await eventually(is_extended)
        gate.open()
        await app.idle()
        await settled_everything(app)
    assert attempts == [(1, 1), (2, 1)]


@pytest.mark.asyncio
async def test_after_a_seek_stale_acks_have_no_effect_and_waiting_messages_are_not_started(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    seen: list[tuple[int, int]] = []

    @app.consumer("orders", concurrency=1)
    async def ship(number: int, message: Message) -> None:
        seen.append((number, message.attempt))
        if len(seen) == 1:
            await gate.wait()
            with pytest.raises(LeaseLost):
                await message.extend()

    async with running(app):
        await app.publish_many("orders", numbered("aaa"))
        await gate.until(1)
        await seek(app, "ship")
        gate.open()
        await app.idle()
        await settled_everything(app)
    assert seen == [(1, 1), (1, 1), (2, 1), (3, 1)]
    assert logged(caplog, "leases lost", consumer="ship", ack_wait=30.0)


@pytest.mark.asyncio
async def test_an_ack_for_a_lease_that_a_seek_ended_changes_nothing_and_is_logged(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.append(number)
        if len(seen) == 1:
            await seek(app, "ship")

    async with running(app):
        await app.publish_many("orders", numbered("ab"))
        await app.idle()
        await settled_everything(app)
    assert sorted(seen) in ([1, 1, 2], [1, 1, 2, 2])
    assert logged(caplog, "outcomes lost with their leases", consumer="ship")


@pytest.mark.asyncio
async def test_a_message_that_another_worker_has_leased_is_not_settled_by_the_first(dsn: str) -> None:
    """A worker froze. Its lease expires, another worker leases the message, and the late ack must
    not end that lease."""
    frozen, other = App(dsn), App(dsn)
    frozen_gate, other_gate = Gate(), Gate()
    attempts: list[int] = []

    def ship_with(gate: Gate) -> Any:
        async def ship(message: Message) -> None:
            attempts.append(message.attempt)
            await gate.wait()

        return ship

    for app, gate in ((frozen, frozen_gate), (other, other_gate)):
        app.consumer("orders", concurrency=1, max_ack_pending=1)(ship_with(gate))

    async with running(frozen):
        await frozen.publish("orders", "a", 1)
        await frozen_gate.until(1)
        await frozen.database.fetchval(
            "update headrace_internal.leases set expires_at = clock_timestamp() - interval '1 s'"
        )
        async with running(other):
            await other_gate.until(1)
            frozen_gate.open()
            await eventually(lambda: lost_something(frozen))
            assert (await consumer(other, "ship")).in_flight == 1, "it is the other's"
            other_gate.open()
            await other.idle()
            await settled_everything(other)
    assert attempts == [1, 2]


async def lost_something(app: App) -> bool:
    await app.database.fetchval("select 1")
    return bool(statistics(app)["lost"])


# --- answers that are lost


class LostAnswers:
    """Calls that are executed and lose their answer, or that are never executed."""

    def __init__(self, verb: Any, times: int, *, done: bool = True) -> None:
        self.verb = verb
        self.left = times
        self.done = done
        self.lost = Seen()

    async def __call__(self, *args: Any, **more: Any) -> Any:
        if not self.left:
            return await self.verb(*args, **more)
        if not self.done:
            self.left -= 1
            raise StoreUnavailable("the call was lost")
        answer = await self.verb(*args, **more)
        if isinstance(answer, Batch) and answer.lease_id is None:
            return answer
        self.left -= 1
        self.lost.note(answer)
        raise StoreUnavailable("the answer was lost")


@pytest.mark.asyncio
async def test_messages_leased_by_a_call_without_an_answer_are_reclaimed_and_handled_at_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    lossy = LostAnswers(store.lease, 3)
    monkeypatch.setattr(store, "lease", lossy)
    seen: list[tuple[int, int]] = []

    @app.consumer("orders", ack_wait="1h")
    async def ship(number: int, message: Message) -> None:
        seen.append((number, message.attempt))

    async with running(app):
        await app.publish_many("orders", numbered("aaa"))
        await app.idle()
        await settled_everything(app)
    assert lossy.left == 0
    assert seen == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.asyncio
async def test_messages_in_handlers_are_not_reclaimed_with_a_lost_lease_call(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    seen: list[int] = []

    @app.consumer("orders", ack_wait="1h")
    async def ship(number: int) -> None:
        seen.append(number)
        await gate.wait()

    async with running(app):
        await app.publish("orders", "a", 1)
        await gate.until(1)
        lossy = LostAnswers(store.lease, 1)
        monkeypatch.setattr(store, "lease", lossy)
        await app.publish_many("orders", [("a", 2), ("b", 3)])
        await gate.until(2)
        assert seen == [1, 3]
        gate.open()
        await app.idle()
        await settled_everything(app)
    assert lossy.left == 0
    assert seen == [1, 3, 2]


@pytest.mark.asyncio
@pytest.mark.parametrize("done", [True, False], ids=["the answer is lost", "the call is lost"])
async def test_a_settle_that_is_lost_is_tried_again_and_nothing_is_handled_twice(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, done: bool
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    lossy = LostAnswers(store.settle, 2, done=done)
    monkeypatch.setattr(store, "settle", lossy)
    seen: list[tuple[int, int]] = []

    @app.consumer("orders", backoff=0)
    async def ship(number: int, message: Message) -> None:
        seen.append((number, message.attempt))
        if (number, message.attempt) == (2, 1):
            raise ValueError

    async with running(app):
        await app.publish_many("orders", numbered("aaab"))
        await app.idle()
        await settled_everything(app)
    assert lossy.left == 0
    assert sorted(seen) == [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1)]
    assert logged(caplog, "database unavailable", task="ship: settling")
    assert logged(caplog, "database available again", task="ship: settling")


@pytest.mark.asyncio
async def test_a_lease_that_was_partly_settled_when_the_answer_was_lost_goes_on(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    lossy = LostAnswers(store.settle, 1)
    monkeypatch.setattr(store, "settle", lossy)
    go = anyio.Event()
    seen: list[tuple[int, int]] = []

    @app.consumer("orders", concurrency=1, ack_wait="1h")
    async def ship(number: int, message: Message) -> None:
        seen.append((number, message.attempt))
        if number == 2:
            await go.wait()

    async with app:
        await store.create_stream(app.database, "orders")
        await app.publish_many("orders", numbered("aaa"))
        async with running(app):
            await lossy.lost.until(1)  # the ack of the first, which did not wait for the others
            go.set()
            await app.idle()
            await settled_everything(app)
    assert seen == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.asyncio
async def test_acks_of_a_whole_lease_are_settled_by_its_id_alone(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Settlement] = []
    real = store.settle

    async def settle(executor: store.Executor, consumer: int, settlement: Settlement, **more: Any) -> list[Lost]:
        told.append(settlement)
        return await real(executor, consumer, settlement, **more)

    monkeypatch.setattr(store, "settle", settle)

    @app.consumer("orders", concurrency=50)
    async def ship() -> None: ...

    async with app:
        await store.create_stream(app.database, "orders")
        await app.publish_many("orders", numbered(f"k{n}" for n in range(100)))
        async with running(app):
            await app.idle()
    assert [len(settlement.leases) for settlement in told] == [0] * len(told)


# --- database retry


@pytest.mark.asyncio
async def test_work_goes_on_when_every_connection_is_killed_and_nothing_is_lost(dsn: str) -> None:
    app = App(dsn)
    killer = store.Database(dsn, application_name="killer")
    firsts: dict[str, list[int]] = {}

    @app.consumer("orders", concurrency=8, ack_wait="5s", backoff=0)
    async def ship(number: int, message: Message) -> None:
        seen = firsts.setdefault(message.key, [])
        if number not in seen:
            seen.append(number)
        if number % 60 == 0:
            await killer.fetch(
                """select pg_terminate_backend(pid) from pg_stat_activity
                   where datname = current_database() and application_name = 'headrace'"""
            )

    await killer.open()
    try:
        async with running(app):
            await app.publish_many("orders", [(f"k{number % 7}", number) for number in range(1, 301)])
            await app.idle()
            await settled_everything(app)
    finally:
        await killer.close()
    assert firsts == {f"k{place}": list(range(place or 7, 301, 7)) for place in range(7)}


@pytest.mark.asyncio
async def test_a_handler_goes_on_while_the_store_is_away_and_its_ack_arrives_afterwards(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = True
    refused = Seen()
    real = store.settle

    async def settle(*args: Any, **more: Any) -> list[Lost]:
        if away:
            refused.note(args)
            raise StoreUnavailable("away")
        return await real(*args, **more)

    monkeypatch.setattr(store, "settle", settle)
    seen = Seen()

    @app.consumer("orders", max_ack_pending=3)
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await app.publish_many("orders", numbered("abcdef"))
        await seen.until(3)
        await refused.until(len(refused.notes) + 2)
        assert len(seen.notes) == 3, "while nothing can be settled, no more is leased than may be unsettled"
        away = False
        await app.idle()
        await settled_everything(app)
    assert sorted(seen.notes) == [1, 2, 3, 4, 5, 6]
