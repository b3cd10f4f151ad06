"""Processes of a consumer of batches share its keys: one that holds messages of them all gives some to one that has
none."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

import anyio
import pytest

from headrace import App, Batch, Breaker, store
from headrace.app import heartbeats
from headrace.model.errors import StoreUnavailable
from headrace.runtime.pipeline.fetcher import Fetcher
from headrace.runtime.pipeline.handover import Handover, HandoverPace
from headrace.store.database.retry import DatabaseRetry
from tests.runtime.running import Gate, Seen, eventually, parked, pipeline_of, running
from tests.support.logs import logged

pytestmark = pytest.mark.asyncio

KEYS, MESSAGES, ROWS = 30, 2_000, 200
EVENT = "messages released to an idle process"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HandoverPace, "SHORTEST", 0.05)


def process(url: str, name: str, seen: Seen, gate: Gate | None = None, **options: Any) -> App:
    """Return an app that notes the batches of a consumer, which wait at the gate if there is one."""
    app = App(url, streams=["orders"], shutdown_timeout=5)

    @app.consumer("orders", batch=ROWS, batch_timeout="2s", concurrency=1, **options)
    async def ship(numbers: list[int], batch: Batch) -> None:
        seen.note((name, [(message.key, message.data, message.attempt) for message in batch]))
        if gate is not None:
            await gate.wait()

    return app


async def publish(app: App) -> None:
    await app.publish_many("orders", [(f"k{number % KEYS}", number) for number in range(MESSAGES)])


async def with_an_owner_of_a_process_that_died(app: App) -> None:
    consumer = await store.consumer_id(app.database, "orders", "ship")
    await store.check_in(app.database, store.Owner(consumer, uuid4(), "orders", "ship"), [])


async def ready_to_release(app: App) -> Handover:
    """Wait until messages are in the buffer that could be released. Returns what would release them."""
    pipeline = pipeline_of(app)

    async def holds_others() -> bool:
        return bool(pipeline.lanes.ready)

    await eventually(holds_others)
    assert pipeline.fetcher._handover is not None
    return pipeline.fetcher._handover


def check_handled(seen: Seen) -> None:
    """Each message was handled once, at its first attempt, and each key in order."""
    handled: dict[str, list[tuple[int, int]]] = {}
    for _, messages in seen.notes:
        for key, number, attempt in messages:
            handled.setdefault(key, []).append((number, attempt))
    assert handled == {f"k{key}": [(number, 1) for number in range(key, MESSAGES, KEYS)] for key in range(KEYS)}


async def test_two_processes_of_a_consumer_of_batches_both_get_work(dsn: str) -> None:
    """The first one has messages of all keys before the second one starts. The batches of both are full."""
    seen, gate = Seen(), Gate()
    ann, bob = process(dsn, "ann", seen, gate), process(dsn, "bob", seen)
    async with ann, bob:
        await publish(ann)
        async with running(ann):
            await gate.until(1)
            async with running(bob):
                await seen.until(2)
                gate.open()
                await ann.idle()
                await bob.idle()
    check_handled(seen)
    sizes = {name: [len(messages) for by, messages in seen.notes if by == name] for name in ("ann", "bob")}
    assert sizes["ann"][0] == sizes["bob"][0] == ROWS


async def test_messages_that_no_process_takes_are_handled_by_the_one_that_released_them(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    seen, gate = Seen(), Gate()
    ann = process(dsn, "ann", seen, gate)

    async def released() -> bool:
        return bool(logged(caplog, EVENT, consumer="ship"))

    async with ann:
        await publish(ann)
        async with running(ann):
            await gate.until(1)
            await with_an_owner_of_a_process_that_died(ann)
            await eventually(released)
            gate.open()
            await ann.idle()
    check_handled(seen)
    assert [len(messages) for _, messages in seen.notes] == [ROWS] * (MESSAGES // ROWS)


@pytest.mark.parametrize("limited", [True, False])
async def test_messages_with_tokens_of_a_rate_limit_are_not_released(
    dsn: str, monkeypatch: pytest.MonkeyPatch, limited: bool
) -> None:
    looks: list[bool] = []
    monkeypatch.setattr(HandoverPace, "due", lambda *_: bool(looks and looks.pop()))
    seen, gate = Seen(), Gate()
    ann = process(dsn, "ann", seen, gate, rate_limit=1_000_000 if limited else None)
    async with ann:
        await publish(ann)
        async with running(ann):
            await gate.until(1)
            await with_an_owner_of_a_process_that_died(ann)
            handover = await ready_to_release(ann)
            looks.append(True)
            assert await handover.offer() != limited
            gate.open()
            await ann.idle()
    check_handled(seen)


async def test_messages_are_not_released_to_a_process_with_an_open_circuit_breaker(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take none of them, and the lease calls of the one that has released them would pause in vain."""
    monkeypatch.setattr(heartbeats, "INTERVAL", 0.05)
    looks: list[bool] = []
    monkeypatch.setattr(HandoverPace, "due", lambda *_: bool(looks and looks.pop()))
    seen, gate, bob = Seen(), Gate(), App(dsn, streams=["orders"])
    ann = process(dsn, "ann", seen, gate)

    @bob.consumer("orders", name="ship", batch=ROWS, backoff=0, breaker=Breaker(failures=1, pause=3600, longest=3600))
    async def fail(numbers: list[int]) -> None:
        raise ConnectionError("the warehouse does not answer")

    async def reports_it() -> bool:
        _, processes = await store.workers(bob.database)
        return any(consumer.breaker == "open" for process in processes for consumer in process.consumers)

    async with ann, bob:
        await bob.publish("orders", "k0", 0)
        async with running(bob):
            await eventually(reports_it)
            await publish(ann)
            async with running(ann):
                await gate.until(1)
                handover = await ready_to_release(ann)
                looks.append(True)
                assert not await handover.offer()
                gate.open()
                await ann.idle()


async def test_a_stop_does_not_wait_for_a_release_while_the_database_is_unavailable(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The database is unavailable from the release on until the fetcher has ended."""
    monkeypatch.setattr(HandoverPace, "PAUSE", 0.05)
    seen, gate, fails, ended = Seen(), Gate(), anyio.Event(), anyio.Event()
    settle, run = store.settle, Fetcher.run

    async def fail(*arguments: Any, **options: Any) -> Any:
        if ended.is_set():
            return await settle(*arguments, **options)
        fails.set()
        raise StoreUnavailable("The database is unavailable.")

    async def end(fetcher: Fetcher, database_retry: DatabaseRetry) -> None:
        await run(fetcher, database_retry)
        ended.set()

    monkeypatch.setattr(store, "settle", fail)
    monkeypatch.setattr(Fetcher, "run", end)
    ann = process(dsn, "ann", seen, gate)
    async with ann:
        await publish(ann)
        async with running(ann):
            await gate.until(1)
            await with_an_owner_of_a_process_that_died(ann)
            await fails.wait()
            gate.open()
        assert not logged(caplog, "handlers stopped", consumer="ship")
        assert await parked(ann) != []
