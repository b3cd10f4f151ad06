"""Consumers that are replayed, moved and changed while two processes work on their messages: nothing is lost, no key is
handled twice at a time or ends with an older message, and nothing is left standing."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from headrace import App, Message, Reject, Retry, store
from headrace.model.specs import ConsumerSpec
from tests.runtime.running import WITHIN, Gate, Seen, consumer, eventually, make_due, running

pytestmark = pytest.mark.asyncio

TIMES = [1, pytest.param(5, marks=pytest.mark.long), pytest.param(20, marks=pytest.mark.torture)]
KEYS = [f"k{n}" for n in range(30)]

Handler = Callable[[Message], Any]


class Handled:
    """The messages whose handlers returned, in order, and the keys that two handlers worked on at a time."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.overlaps: list[str] = []
        self._at_work: Counter[str] = Counter()

    async def handle(self, message: Message, work: Handler) -> None:
        self._at_work[message.key] += 1
        if self._at_work[message.key] > 1:
            self.overlaps.append(message.key)
        try:
            await work(message)
            self.seen.note((message.key, message.seq))
        finally:
            self._at_work[message.key] -= 1

    def of_keys(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for key, seq in self.seen.notes:
            found.setdefault(key, []).append(seq)
        return found


@asynccontextmanager
async def two_at_work(dsn: str, stream: str, handled: Handled, work: Handler, **settings: Any) -> AsyncIterator[App]:
    """Two apps with the same consumer `ship`."""
    apps = [App(dsn, streams=[stream]), App(dsn, streams=[stream])]
    for app in apps:

        @app.consumer(stream, name="ship", concurrency=40, backoff=0, **settings)
        async def ship(message: Message) -> None:
            await handled.handle(message, work)

    async with running(apps[0], within=WITHIN * 3), running(apps[1], within=WITHIN * 3):
        yield apps[0]


async def nothing_is_left(app: App, stream: str) -> None:
    async def done() -> bool:
        info = await consumer(app, "ship", stream)
        assert info.missed == 0
        return (info.in_flight, info.parked, info.replaying, info.blocked, info.lag) == (0, 0, 0, 0, 0)

    await eventually(done)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("operation", ["replay", "redrive"])
async def test_keys_end_with_their_latest_message_when_they_are_put_back_at_work(
    dsn: str, operation: str, times: int
) -> None:
    """Of each key the third message is in hand."""
    for number in range(times):
        stream, handled, gate = f"s{number}", Handled(), Gate()
        rejected = set[int]()

        async def work(message: Message, gate: Gate = gate, rejected: set[int] = rejected) -> None:
            if message.seq > 60:
                await gate.wait()
            elif operation == "redrive" and message.seq not in rejected:
                rejected.add(message.seq)
                raise Reject("not yet")

        async with two_at_work(dsn, stream, handled, work) as app:
            await app.publish_many(stream, [(key, 1) for _ in range(3) for key in KEYS])
            await gate.until(30)

            async def others_are_settled(stream: str = stream) -> bool:
                return (await consumer(app, "ship", stream)).in_flight == 30

            await eventually(others_are_settled)
            if operation == "replay":
                assert await app.admin.replay(stream, "ship") == 90
                expected = [0, 30, 60, 0, 30, 60]
            else:

                async def dead(stream: str = stream) -> bool:
                    return (await consumer(app, "ship", stream)).dead_letters == 60

                await eventually(dead)
                assert await app.admin.redrive(stream, "ship") == 60
                expected = [60, 0, 30, 60]
            gate.open()
            await handled.seen.until(30 * len(expected))
            await nothing_is_left(app, stream)
        assert handled.of_keys() == {key: [place + n + 1 for place in expected] for n, key in enumerate(KEYS)}
        assert handled.overlaps == []


@pytest.mark.parametrize("times", TIMES)
async def test_a_seek_back_at_work_loses_nothing(dsn: str, times: int) -> None:
    """At 30, the first message waits for its retry, the second is in hand, the third belongs to an open transaction."""
    late = await asyncpg.connect(dsn)
    for number in range(times):
        stream, handled, gate = f"s{number}", Handled(), Gate()

        async def work(message: Message, gate: Gate = gate) -> None:
            if message.seq == 1 and message.attempt == 1:
                raise Retry(delay=3600)
            if message.seq == 2:
                await gate.wait()

        async with two_at_work(dsn, stream, handled, work) as app:
            await app.publish_many(stream, [("a", 1), ("b", 1)])
            transaction = late.transaction()
            await transaction.start()
            await store.publish(late, stream, "c", "1")
            await app.publish_many(stream, [(f"k{n}", 1) for n in range(4, 31)])
            await handled.seen.until(27)

            async def settled(stream: str = stream) -> bool:
                return (await consumer(app, "ship", stream)).in_flight == 1

            await eventually(settled)
            assert await app.admin.seek(stream, "ship", 20) == 19
            await handled.seen.until(27 + 11)
            gate.open()
            await transaction.commit()
            await make_due(app)
            await handled.seen.until(27 + 11 + 3)
            await nothing_is_left(app, stream)
        assert Counter(seq for _, seq in handled.seen.notes) == {n: 2 if n >= 20 else 1 for n in range(1, 31)}
        assert handled.overlaps == []
    await late.close()


@pytest.mark.parametrize("times", TIMES)
async def test_followers_of_a_blocked_key_are_handled_together_once_the_consumer_is_unordered(
    dsn: str, times: int
) -> None:
    for number in range(times):
        stream, handled, gate = f"s{number}", Handled(), Gate()

        async def work(message: Message, gate: Gate = gate) -> None:
            if message.seq == 1:
                raise ValueError("no")
            await gate.wait()

        async with two_at_work(dsn, stream, handled, work, max_deliver=1, on_exhausted="block") as app:
            await app.publish_many(stream, [("a", 1)] * 20)

            async def blocked(stream: str = stream) -> bool:
                return (await consumer(app, "ship", stream)).blocked == 20

            await eventually(blocked)
            await app.admin.edit_consumer(stream, "ship", ordered=False)
            await gate.until(19)
            gate.open()
            await handled.seen.until(19)
        assert sorted(handled.seen.notes) == [("a", seq) for seq in range(2, 21)]


async def test_a_key_at_work_is_not_handled_twice_at_a_time_once_the_consumer_is_ordered(app: App, seen: Seen) -> None:
    gate = Gate()

    @app.consumer("orders", ordered=False, concurrency=4)
    async def ship(number: int) -> None:
        seen.note(number)
        if number == 1:
            await gate.wait()

    async with running(app):
        await app.publish("orders", "a", 1)
        await gate.until(1)
        await store.declare_consumer(app.database, ConsumerSpec(stream="orders", name="ship"))
        await app.publish_many("orders", [("a", 2), ("b", 3)])
        assert await seen.until(2) == [1, 3]
        await app.publish_many("orders", [("a", 4), ("b", 5)])
        assert await seen.until(3) == [1, 3, 5]
        gate.open()
        await app.idle()
    assert seen.notes == [1, 3, 5, 2, 4]


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("seeks", [False, True], ids=["replays and redrives", "seeks"])
async def test_a_busy_consumer_loses_nothing_whatever_operators_do(dsn: str, times: int, seeks: bool) -> None:
    """Handlers fail and publishers commit late. A seek ends leases, and their handlers may still be at work."""
    for number in range(times):
        stream, handled, chance = f"s{number}", Handled(), random.Random(number)

        async def work(message: Message, chance: random.Random = chance) -> None:
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            if chance.random() < 0.1:
                raise Retry(delay=chance.choice([None, 0.05]))
            if chance.random() < 0.03:
                raise Reject("no")

        async with two_at_work(dsn, stream, handled, work, max_deliver=-1) as app:
            late = [await asyncpg.connect(dsn) for _ in range(3)]
            for _ in range(15):
                transactions = [one.transaction() for one in late]
                for connection, transaction in zip(late, transactions, strict=True):
                    await transaction.start()
                    await store.publish(connection, stream, f"late{chance.randrange(5)}", "1")
                await app.publish_many(stream, [(chance.choice(KEYS), 1) for _ in range(20)])
                for connection, transaction in zip(late, transactions, strict=True):
                    await store.publish(connection, stream, chance.choice(KEYS), "1")
                    if chance.random() < 0.5:
                        await transaction.commit()
                info = await consumer(app, "ship", stream)
                if seeks:
                    await app.admin.seek(stream, "ship", max(info.position - chance.randrange(40), 1))
                else:
                    await app.admin.replay(stream, "ship", start_seq=max(info.position - chance.randrange(40), 1))
                    await app.admin.redrive(stream, "ship")
                for connection, transaction in zip(late, transactions, strict=True):
                    if connection.is_in_transaction():
                        await transaction.commit()
            for connection in late:
                await connection.close()

            async def redriven(stream: str = stream) -> bool:
                await app.admin.redrive(stream, "ship")
                info = await consumer(app, "ship", stream)
                return (info.in_flight, info.parked, info.replaying, info.lag, info.dead_letters) == (0, 0, 0, 0, 0)

            await eventually(redriven)
            rows = await app.database.fetch(
                f"select key, array_agg(seq) as seqs from headrace_streams.{stream} group by key"
            )
            assert (await consumer(app, "ship", stream)).missed == 0
        assert {row["key"]: set(row["seqs"]) for row in rows} == {
            key: set(seqs) for key, seqs in handled.of_keys().items()
        }
        if not seeks:
            assert handled.overlaps == []
