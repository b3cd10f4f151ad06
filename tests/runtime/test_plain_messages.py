"""Messages of handlers that take the payload alone: handled by a shorter way, with the same promises."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest

from headrace import App, Message, Reject
from headrace.flow.in_flight import InFlightTracker
from headrace.flow.lanes import Lanes
from headrace.runtime.execution.actors import Crew
from headrace.runtime.execution.durations import Durations
from headrace.runtime.execution.execution import Execution
from headrace.runtime.execution.plain_executor import PlainExecutor
from headrace.runtime.execution.single_executor import SLICE, STRETCH
from headrace.runtime.isolation import own_task
from headrace.runtime.slot import ActorSlot
from tests.runtime.running import dead_letters, running

current: ContextVar[int] = ContextVar("current")


class Order(msgspec.Struct):
    number: int


class Onward:
    """A crew without surplus."""

    onward = True


class Bench:
    """An executor of a handler, with messages that each have a separate key. It notes which messages are released and which fail."""

    def __init__(self, function: Any, count: int, clock: Any = lambda: 0.0) -> None:
        self.lanes: Lanes[Message] = Lanes()
        self.in_flight: InFlightTracker[Message] = InFlightTracker()
        self.given_back: list[int] = []
        acknowledger: Any = SimpleNamespace(
            ack=self.in_flight.ack, give_up=lambda message: self.given_back.append(message.seq)
        )
        seqs = range(1, count + 1)
        self.lease = self.in_flight.take(1, seqs, seqs, 30.0)
        self.messages = [
            Message("orders", "ship", "a", seq, 1, 0, str(seq), None, self.lease, seq, acknowledger) for seq in seqs
        ]
        self.lanes.add(self.messages)
        self.scope = anyio.CancelScope()
        self.slot = ActorSlot(self.scope)
        failure_handler: Any = self
        unused: Any = None
        durations = Durations()
        execution = Execution(int, None, unused, self.lanes, acknowledger, failure_handler, unused, clock, durations)
        self.executor = PlainExecutor(function, execution)

    def stopped(self, message: Message, slot: ActorSlot) -> None:
        self.given_back.append(message.seq)

    async def run(self) -> None:
        crew: Crew = Onward()
        first = self.lanes.take()
        assert first is not None
        assert await self.executor.run(first, self.slot, crew) is None


@pytest.mark.asyncio
async def test_no_handler_starts_after_the_end_of_the_lease() -> None:
    now, seen = [0.0], []

    async def ship(number: int) -> None:
        seen.append(number)
        now[0] += 12

    bench = Bench(ship, 5, lambda: now[0])
    await bench.run()
    assert (seen, bench.given_back) == ([1, 2, 3], [4, 5])
    assert bench.lease.done == [1, 2, 3]


@pytest.mark.asyncio
@pytest.mark.parametrize("sets", [False, True], ids=["plain", "sets a context variable"])
async def test_the_event_loop_is_left_to_others_after_a_slice_of_time(sets: bool) -> None:
    now, seen, turns = [0.0], [], []

    async def ship(number: int) -> None:
        seen.append(number)
        now[0] += SLICE / STRETCH / 2
        if sets:
            current.set(number)

    async def another() -> None:
        while True:
            turns.append(len(seen))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(another)
        await anyio.lowlevel.checkpoint()
        await Bench(ship, 10 * STRETCH, lambda: now[0]).run()
        group.cancel_scope.cancel()
    between = [later - earlier for earlier, later in pairwise(turns)]
    assert max(between) <= 3 * STRETCH
    assert len(turns) < 8


@pytest.mark.asyncio
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("sets", [False, True], ids=["", "sets a context variable"])
async def test_an_actor_that_is_cancelled_between_messages_leaves_the_next_one_in_its_lane(
    plain: bool, sets: bool
) -> None:
    seen = []

    async def ship(number: int) -> None:
        seen.append(number)
        if sets:
            current.set(number)
        if number == STRETCH:
            bench.scope.cancel()

    bench = Bench(ship, STRETCH + 5)  # with a clock that stands still, so the actor yields after each stretch
    for message in bench.messages:
        message.plain = plain
        message.call = None if plain else lambda payload, _: ship(payload)
    with bench.scope:
        await bench.run()
    assert seen == list(range(1, STRETCH + 1)) == bench.lease.done
    assert [message.seq for message in bench.lanes.clear()] == list(range(STRETCH + 1, STRETCH + 6))
    assert bench.given_back == []


@pytest.mark.asyncio
async def test_a_cancellation_by_others_between_messages_ends_no_actor() -> None:
    seen = []

    async def ship(number: int) -> None:
        seen.append(number)
        if number == STRETCH:
            asyncio.get_running_loop().call_soon(own_task().cancel)

    await Bench(ship, STRETCH + 5).run()
    assert seen == list(range(1, STRETCH + 6))
    assert own_task().cancelling() == 0


@pytest.mark.asyncio
async def test_a_handler_that_is_cancelled_gives_its_message_back() -> None:
    async def ship(number: int) -> None:
        if number == 2:
            bench.scope.cancel()
            await anyio.sleep_forever()

    bench = Bench(ship, 3)
    with bench.scope:
        await bench.run()
    assert (bench.lease.done, bench.given_back, bench.lanes.waiting) == ([1], [2], 1)


@pytest.mark.asyncio
async def test_special_messages_keep_their_place_among_plain_ones(dsn: str) -> None:
    app, seen = App(dsn, streams=["orders"]), []

    @app.consumer("orders")
    async def ship(number: int) -> None:
        seen.append(number)

    async with running(app):
        for number in range(20):
            await app.publish("orders", "a", number, expires_in="1h" if number % 3 else None)
        await app.idle()
    assert seen == list(range(20))


@pytest.mark.asyncio
async def test_every_outcome_counts(dsn: str) -> None:
    app, lost = App(dsn, streams=["orders"]), []

    @app.consumer("orders", max_deliver=1)
    async def ship(order: Order) -> Reject | None:
        if order.number == 2:
            raise ValueError("two")
        return Reject("three") if order.number == 3 else None

    @app.on_dead_letter
    async def note(message: Message, error: BaseException) -> None:
        lost.append(message.data)

    async with running(app):
        await app.publish_many("orders", [("a", {"number": number}) for number in (1, 2, 3, "four", 5)])
        await app.idle()
        assert [letter.seq for letter in await dead_letters(app, "ship")] == [2, 3, 4]
    assert lost == [Order(2), Order(3), {"number": "four"}]


@pytest.mark.asyncio
async def test_it_is_for_handlers_that_take_the_payload_alone(dsn: str) -> None:
    app = App(dsn, streams=["orders"])

    @app.consumer("orders")
    async def plain(number: int) -> None: ...

    @app.consumer("orders")
    async def sees(number: int, message: Message) -> None: ...

    @app.consumer("orders", timeout="1s")
    async def timed(number: int) -> None: ...

    @app.consumer("orders", transactional=True)
    async def transactional(number: int) -> None: ...

    async with running(app):
        assert app._service is not None
        works = {pipeline.spec.name: pipeline.actors._work for pipeline in app._service.pipelines}
    assert [name for name, work in works.items() if isinstance(work, PlainExecutor)] == ["plain"]
