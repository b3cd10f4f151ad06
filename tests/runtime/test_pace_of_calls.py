"""A consumer that keeps up with its stream leaves more messages to the next lease call where calls are slow."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import anyio
import pytest

from headrace import App, store
from headrace.flow.demand import CallPace
from headrace.model.records import Batch
from headrace.model.specs import ConsumerSpec
from headrace.runtime.leasing.lease_calls import LeaseCalls
from headrace.testing.clock import Clock
from tests.runtime.running import Seen, running

pytestmark = pytest.mark.asyncio

MANY = CallPace.MANY


async def calls_after(
    database: store.Database, monkeypatch: pytest.MonkeyPatch, messages: int, *durations: float
) -> LeaseCalls:
    """Make lease calls that take so many seconds, with so many messages each. A rest lasts until a test ends it."""
    monkeypatch.setattr(CallPace, "LONGEST", 3600.0)
    clock, lease = Clock(), store.lease
    spec = ConsumerSpec(stream="orders", name="ship")
    await store.create_stream(database, "orders")
    consumer = await store.declare_consumer(database, spec)
    calls, owner = LeaseCalls(database, consumer.id, clock=clock.monotonic), uuid4()
    for took in durations:

        async def slow(*args: Any, took: float = took, **options: Any) -> Batch:
            clock.move(took)
            return await lease(*args, **options)

        monkeypatch.setattr(store, "lease", slow)
        await store.publish_many(database, "orders", [f"k.{n}" for n in range(messages)], ["1"] * messages)
        calls.begin()
        assert len((await calls.lease(owner, 1000, spec)).seqs) == messages
    return calls


async def test_after_many_messages_of_a_slow_call_the_next_one_waits_whatever_is_published(
    database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = await calls_after(database, monkeypatch, MANY, 0.001, 100.0)
    async with anyio.create_task_group() as group:
        ended = anyio.Event()

        async def keep() -> None:
            await calls.keep_pace()
            ended.set()

        group.start_soon(keep)
        await anyio.wait_all_tasks_blocked()
        calls.notified()
        calls.wake()
        await anyio.wait_all_tasks_blocked()
        assert not ended.is_set()
        calls.hurry()  # as when the consumer stops, or somebody waits until it is idle
        await ended.wait()


@pytest.mark.parametrize(
    ("messages", "durations"), [(MANY, (0.001, 0.001)), (MANY - 1, (0.001, 100.0)), (MANY, (100.0,))]
)
async def test_otherwise_it_does_not(
    database: store.Database, monkeypatch: pytest.MonkeyPatch, messages: int, durations: tuple[float, ...]
) -> None:
    calls = await calls_after(database, monkeypatch, messages, *durations)
    with anyio.fail_after(60):
        await calls.keep_pace()


async def test_a_consumer_keeps_the_pace_and_ends_at_once(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, seen, keep_pace = anyio.Event(), Seen(), LeaseCalls.keep_pace

    async def noted(calls: LeaseCalls) -> None:
        if calls._next_at > 3600:
            waiting.set()
        await keep_pace(calls)

    monkeypatch.setattr(CallPace, "rest", lambda _, messages, *_others: 1e6 if messages else 0.0)
    monkeypatch.setattr(LeaseCalls, "keep_pace", noted)

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await app.publish_many("orders", [("a.key", number) for number in range(MANY)])
        await waiting.wait()
    assert seen.notes == list(range(MANY))
