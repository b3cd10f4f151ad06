"""Settlement order: a message is not settled before earlier messages of its key, so a crash at any
moment repeats messages and never breaks the order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import asyncpg
import pytest

from headrace import App, ConfigurationError, Message, Reject, store
from headrace.model.outcomes import Settlement
from headrace.model.records import Lost
from headrace.runtime.pipeline.timings import Timings
from tests.runtime.running import WITHIN, Gate, Seen, consumer, eventually, running

pytestmark = pytest.mark.asyncio


@pytest.fixture
def app(dsn: str) -> App:
    """An app where the acks of an unfinished lease wait until the end of the test, so that the test
    covers a crash in that time."""
    app = App(dsn)
    app._timings = Timings(linger=3600.0)
    return app


class Settles:
    """Record the settle calls of the worker, in the order in which they are done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Settlement] = []
        self._settle = store.settle
        self._news = anyio.Event()
        self.open = anyio.Event()
        self.open.set()
        monkeypatch.setattr(store, "settle", self._watched)

    async def _watched(self, *args: Any, **options: Any) -> list[Lost]:
        await self.open.wait()
        lost = await self._settle(*args, **options)
        self.calls.append(args[2])
        self._news.set()
        self._news = anyio.Event()
        return lost

    async def until(self, count: int) -> None:
        with anyio.fail_after(WITHIN):
            while len(self.calls) < count:
                await self._news.wait()


async def leased(app: App) -> set[int]:
    """The messages that leases hold. A crash would deliver these again."""
    rows = await app.database.fetch(
        "select m.seq from headrace_internal.leases as l cross join headrace_internal.messages_of_lease(l) as m"
    )
    return {row["seq"] for row in rows}


class Stalled:
    """Two leases of a worker, (k 1, x 2) and (k 3), and then one of another key, (y 4). The handler
    of x is stuck."""

    def __init__(self, app: App, seen: Seen, gate: Gate) -> None:
        self.app = app
        self.seen = seen
        self.gate = gate

    async def note(self, number: int) -> None:
        if number == 2:
            await self.gate.wait()
        self.seen.note(number)

    async def begin(self) -> None:
        await self.app.publish_many("orders", [("k", 1), ("x", 2)])
        await self.gate.until(1)
        await self.seen.until(1)
        await self.app.publish("orders", "k", 3)
        await self.seen.until(2)
        await self.app.publish("orders", "y", 4)
        await self.seen.until(3)


@pytest.fixture
def stalled(app: App) -> Stalled:
    return Stalled(app, Seen(), Gate())


async def test_a_later_message_of_a_key_is_not_acked_before_an_earlier_one(
    app: App, stalled: Stalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    settles = Settles(monkeypatch)

    @app.consumer("orders", ack_wait="1h")
    async def ship(number: int) -> None:
        await stalled.note(number)

    async with running(app):
        await stalled.begin()
        await settles.until(1)  # the ack of y, which waits for nothing
        assert await leased(app) == {1, 2, 3}, "a crash now would bring back 1, and never 3"
        stalled.gate.open()
        await app.idle()
        assert await leased(app) == set()
    assert stalled.seen.notes == [1, 3, 4, 2]


async def one_by_one(app: App, seen: Seen, *numbers: int) -> None:
    """Publish a message after the other, each when the one before is handled."""
    for number in numbers:
        await app.publish("orders", f"k{number}", number)
        await seen.until(number)


async def test_single_messages_are_settled_several_at_a_time(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app._timings = Timings(gather=3600.0)
    settles, seen = Settles(monkeypatch), Seen()

    @app.consumer("orders", ack_wait="1h", max_ack_pending=1000)
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await one_by_one(app, seen, 1)
        await settles.until(1)
        await one_by_one(app, seen, 2, 3, 4)
        assert await leased(app) == {2, 3, 4}
    assert [len(settlement.whole) for settlement in settles.calls] == [1, 3], "a drain leaves nothing behind"


async def test_messages_that_take_the_room_of_others_are_settled_at_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    app._timings = Timings(gather=3600.0)
    settles, seen = Settles(monkeypatch), Seen()

    @app.consumer("orders", ack_wait="1h", max_ack_pending=3)
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await one_by_one(app, seen, 1, 2, 3, 4, 5)
        await settles.until(4)


async def test_a_dead_letter_of_a_key_does_not_overtake_an_ack(
    app: App, stalled: Stalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    settles = Settles(monkeypatch)

    @app.consumer("orders", ack_wait="1h")
    async def ship(number: int) -> None:
        await stalled.note(number)
        if number == 3:
            raise Reject("never")

    async with running(app):
        await stalled.begin()
        await settles.until(2)
        assert await leased(app) == {2}
        assert (await consumer(app, "ship")).dead_letters == 1
        for call in settles.calls:
            assert 3 not in call.seqs or 1 in call.seqs, "what precedes the dead letter goes with it"
        stalled.gate.open()


async def test_an_ack_in_a_transaction_of_the_handler_comes_after_earlier_acks_of_its_key(
    app: App, dsn: str, stalled: Stalled
) -> None:
    leased_then: list[set[int]] = []
    connection = await asyncpg.connect(dsn)

    @app.consumer("orders", ack_wait="1h")
    async def ship(number: int, message: Message) -> None:
        if number == 3:
            async with connection.transaction():
                await message.ack(tx=connection)
                leased_then.append(await leased(app))
        await stalled.note(number)

    async with running(app):
        await stalled.begin()
        assert leased_then == [{2, 3}], "3 is about to be acked for good, and a crash would bring back 1"
        stalled.gate.open()
        await app.idle()
    await connection.close()


async def test_a_message_that_is_refused_alone_costs_the_rest_of_its_lease_nothing(
    app: App, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that a transaction has acked is released nevertheless. The store refuses that and
    keeps the lease of the others.

    A worker that treated the lease as lost would never settle it, and would extend it for ever.
    """
    settles, gate, seen = Settles(monkeypatch), Gate(), Seen()
    connection = await asyncpg.connect(dsn)

    async def aborted(*_: Any, **__: Any) -> str:
        return "aborted"

    monkeypatch.setattr(store, "transaction_status", aborted)

    @app.consumer("orders", ack_wait="1h", backoff=0)
    async def ship(number: int, message: Message) -> None:
        if number == 1:
            await gate.wait()
        else:
            async with connection.transaction():
                await message.ack(tx=connection)
        seen.note((number, message.attempt))

    async with running(app):
        await app.publish_many("orders", [("x", 1), ("k", 2)])
        await gate.until(1)
        await settles.until(1)
        assert await leased(app) == {1}
        gate.open()
        await app.idle()
        assert await leased(app) == set()
    assert seen.notes == [(2, 1), (1, 1)]
    await connection.close()


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
async def test_an_outcome_from_before_a_rewind_does_not_count(app: App, transactional: bool) -> None:
    """A failover undoes the ack of 1. The lease of 3, a later message of the key, is still there.

    The effects of a transactional handler are undone, too. Otherwise the process has not settled the ack, and does it now.
    """
    gates, seen = {2: Gate(), 3: Gate()}, Seen()

    @app.consumer("orders", ack_wait="1h", transactional=transactional)
    async def ship(number: int, message: Message) -> None:
        if message.attempt == 1 and number in gates and not gates[number].passed:
            await gates[number].wait()
        seen.note((message.key, number))

    async def acked() -> bool:
        return 1 not in await leased(app)

    async with running(app):
        await app.publish_many("orders", [("k", 1), ("x", 2)])
        await gates[2].until(1)
        await seen.until(1)
        lease = await app.database.fetchrow("select * from headrace_internal.leases")
        await app.database.fetch("select headrace_internal.settle_outcomes($1, '{}', $2, '{1}', '{null}')",
                                 lease["consumer_id"], [lease["lease_id"]])  # fmt: skip
        await eventually(acked)
        await app.publish("orders", "k", 3)
        await gates[3].until(1)
        async with app.database.transaction() as connection:  # as the failover leaves it
            await connection.execute(
                "update headrace_internal.leases set held = 2, seqs = $2, hashes = $3 where lease_id = $1",
                lease["lease_id"], lease["seqs"], lease["hashes"],
            )  # fmt: skip
            await connection.execute("delete from headrace_internal.acks")
            await connection.execute("delete from headrace_internal.history")
        for gate in gates.values():
            gate.open()
        await app.idle()
        assert await leased(app) == set()
    of_k = [number for key, number in seen.notes if key == "k"]
    assert of_k == ([1, 3, 1, 3] if transactional else [1, 3]), "the last value that a handler keeps is the right one"


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> Settles:
    """Hold settles back from the store until `open` is set."""
    settles = Settles(monkeypatch)
    settles.open = anyio.Event()
    return settles


Handle = Callable[[list[int]], Awaitable[None]]


@pytest.mark.parametrize("kind", ["single", "batch", "key"])
async def test_with_ack_before_next_a_key_s_next_message_waits_for_the_commit_of_the_ack(
    app: App, held_back: Settles, kind: str
) -> None:
    seen = Seen()
    options: dict[str, Any] = {"batch": {"batch": 2}, "key": {"group_by_key": True, "batch": 1}, "single": {}}[kind]
    if kind == "single":

        @app.consumer("orders", ack_before_next=True, ack_wait="1h", concurrency=4)
        async def ship(number: int) -> None:
            seen.note(number)
    else:

        @app.consumer("orders", ack_before_next=True, ack_wait="1h", concurrency=4, **options)
        async def ship_many(numbers: list[int]) -> None:
            for number in numbers:
                seen.note(number)

    first = {"single": {1, 2}, "batch": {1, 2}, "key": {1, 2}}[kind]
    async with running(app):
        await app.publish_many("orders", [("k", 1), ("j", 2)])
        await seen.until(2)
        await app.publish_many("orders", [("k", 3), ("j", 4), ("k", 5), ("i", 6)])
        await seen.until(3)
        assert set(seen.notes) == first | {6}, "another key goes on, and no key has gone on before its ack"
        held_back.open.set()
        await seen.until(6)
        await app.idle()
    assert [number for number in seen.notes if number in (1, 3, 5)] == [1, 3, 5]


async def test_messages_that_ack_before_next_holds_back_are_drained_in_order(app: App, held_back: Settles) -> None:
    seen = Seen()

    @app.consumer("orders", ack_before_next=True, ack_wait="1h")
    async def ship(number: int) -> None:
        seen.note(number)

    async with running(app):
        await app.publish_many("orders", [("k", 1), ("k", 2), ("k", 3)])
        await seen.until(1)
        held_back.open.set()
    assert seen.notes == list(range(1, len(seen.notes) + 1))
    async with running(app):
        await app.idle()
    assert seen.notes == [1, 2, 3]


async def test_with_ack_before_next_a_message_that_fails_comes_again_before_the_next_one(app: App) -> None:
    seen = Seen()

    @app.consumer("orders", ack_before_next=True, backoff=0)
    async def ship(number: int, message: Message) -> None:
        seen.note((number, message.attempt))
        if (number, message.attempt) == (2, 1):
            raise RuntimeError("once more")

    async with running(app):
        await app.publish_many("orders", [("k", 1), ("k", 2), ("k", 3)])
        await app.idle()
    assert seen.notes == [(1, 1), (2, 1), (2, 2), (3, 1)]
    assert await eventually_settled(app)


async def eventually_settled(app: App) -> bool:
    async with running(app):
        return bool(await eventually(lambda: nothing_left(app)))


async def nothing_left(app: App) -> bool:
    info = await consumer(app, "ship")
    return (info.lag, info.in_flight, info.parked) == (0, 0, 0)


async def test_ack_before_next_needs_order(app: App) -> None:
    async def ship(number: int) -> None: ...

    with pytest.raises(ConfigurationError, match="ack_before_next=True needs the order of keys"):
        app.consumer("orders", ack_before_next=True, ordered=False)(ship)
