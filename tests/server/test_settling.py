"""Settling through the engine. Concurrent requests are settled together, and each id has its own outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headrace import store
from headrace.model.ack_ids import AckIds, InvalidAckId
from headrace.model.errors import StoreUnavailable
from headrace.model.outcomes import Failure, Settlement
from headrace.server.data_plane.receive_request import Share
from headrace.server.data_plane.registry import CachedConsumer
from headrace.server.engine import Engine
from tests.server.conftest import Consume

pytestmark = pytest.mark.asyncio

RETRY = Failure("retry")


async def received(engine: Engine, consumer: CachedConsumer, keys: str, size: int = 100) -> list[Share]:
    await engine.app.publish_many("orders", [(key, place) for place, key in enumerate(keys, 1)])
    shares = []
    while (share := await engine.receive(consumer, size)).lease is not None:
        shares.append(share)
    return shares


async def left(engine: Engine) -> tuple[int, int]:
    """Count messages in flight, and messages that will be delivered again."""
    info = await engine.app.admin.consumer("orders", "ship")
    return info.num_ack_pending, info.parked


class Settle:
    """Records settle calls, and holds them up until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Settlement] = []
        self.called = asyncio.Event()
        self.go = asyncio.Event()
        self._real = store.settle
        monkeypatch.setattr(store, "settle", self._settle)

    async def _settle(self, database: Any, consumer: int, settlement: Settlement) -> Any:
        self.calls.append(settlement)
        self.called.set()
        await self.go.wait()
        return await self._real(database, consumer, settlement)


async def test_acks_that_arrive_together_are_settled_in_one_call(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = await consume()
    shares = await received(engine, ship, "abcdef", size=2)
    settle = Settle(monkeypatch)
    first = asyncio.create_task(engine.settle(ship, shares[0].ack_ids))
    await settle.called.wait()
    others = [
        asyncio.create_task(engine.settle(ship, shares[1].ack_ids[:1])),
        asyncio.create_task(engine.settle(ship, shares[1].ack_ids[1:], RETRY)),
        asyncio.create_task(engine.settle(ship, shares[2].ack_ids)),
    ]
    await asyncio.sleep(0)
    settle.go.set()
    assert await first == []
    assert [await one for one in others] == [[], [], []]
    assert len(settle.calls) == 2
    assert await left(engine) == (0, 1)


async def test_a_share_that_is_acked_in_full_is_acked_as_one(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = await consume()
    (share,) = await received(engine, ship, "abc")
    settle = Settle(monkeypatch)
    settle.go.set()
    assert await engine.settle(ship, share.ack_ids) == []
    assert [(one.whole, one.seqs) for one in settle.calls] == [([share.lease], [])]
    assert await left(engine) == (0, 0)


async def test_an_ack_changes_only_what_it_names(engine: Engine, consume: Consume) -> None:
    ship = await consume()
    (share,) = await received(engine, ship, "abc")
    assert await engine.settle(ship, share.ack_ids[1:2]) == []
    assert await left(engine) == (2, 0)
    assert await engine.settle(ship, share.ack_ids[:1], RETRY) == []
    assert await left(engine) == (1, 1)


@pytest.mark.parametrize("strict", [False, True])
async def test_a_stale_id_changes_nothing_and_is_reported(engine: Engine, consume: Consume, strict: bool) -> None:
    ship = await consume()
    (share,) = await received(engine, ship, "ab")
    assert await engine.settle(ship, share.ack_ids, RETRY, strict=strict) == []
    assert await engine.settle(ship, share.ack_ids, strict=strict) == list(share.ack_ids)
    again = await engine.receive(ship, 10)
    assert (list(again.seqs), list(again.attempts)) == ([1, 2], [2, 2])
    assert await engine.settle(ship, [share.ack_ids[0], again.ack_ids[0]], strict=strict) == [share.ack_ids[0]]
    assert await left(engine) == (1, 0)


async def test_strict_reports_every_single_message_of_a_share_that_was_settled_before(
    engine: Engine, consume: Consume
) -> None:
    ship = await consume()
    (share,) = await received(engine, ship, "abc")
    await engine.settle(ship, share.ack_ids[:1])
    assert await engine.settle(ship, share.ack_ids, strict=True) == [share.ack_ids[0]]
    assert await left(engine) == (0, 0)


async def test_the_first_of_two_concurrent_settles_of_a_message_counts(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = await consume()
    shares = await received(engine, ship, "abc", size=1)
    settle = Settle(monkeypatch)
    outcomes: Sequence[Failure | None] = (None, RETRY, None, RETRY)
    busy = asyncio.create_task(engine.settle(ship, shares[2].ack_ids))
    await settle.called.wait()
    both = [*shares[0].ack_ids, *shares[1].ack_ids]
    settling = [asyncio.create_task(engine.settle(ship, both, outcome, strict=True)) for outcome in outcomes]
    await asyncio.sleep(0)
    settle.go.set()
    assert await asyncio.gather(busy, *settling) == [[], [], both, both, both]
    assert await left(engine) == (0, 0)


async def test_an_id_that_comes_twice_is_settled_once(engine: Engine, consume: Consume) -> None:
    ship = await consume()
    (share,) = await received(engine, ship, "ab")
    assert await engine.settle(ship, [share.ack_ids[0]] * 2, strict=True) == []
    assert await left(engine) == (1, 0)


async def test_an_id_of_another_consumer_is_stale_here(engine: Engine, consume: Consume) -> None:
    ship, bill = await consume(), await consume("bill")
    (share,) = await received(engine, ship, "a")
    assert await engine.settle(bill, share.ack_ids) == list(share.ack_ids)
    assert await engine.extend(bill, share.ack_ids) == list(share.ack_ids)
    assert await left(engine) == (1, 0)


async def test_one_id_that_is_none_and_nothing_is_settled(engine: Engine, consume: Consume) -> None:
    ship = await consume()
    (share,) = await received(engine, ship, "a")
    other = AckIds(b"another key").seal(ship.number, 1, 1, 1, 1)
    for wrong in ("", "nonsense", other, share.ack_ids[0][:-1], f"{share.ack_ids[0]}="):
        with pytest.raises(InvalidAckId):
            await engine.settle(ship, [share.ack_ids[0], wrong])
    assert await left(engine) == (1, 0)


async def test_extending_holds_what_came_together(engine: Engine, consume: Consume) -> None:
    ship = await consume(ack_wait=3600.0)
    shares = await received(engine, ship, "abc", size=2)
    query = "select lease_id, expires_at from headrace_internal.leases"
    before = dict(await engine.app.database.fetch(query))
    assert await engine.extend(ship, shares[0].ack_ids[:1]) == []
    after = dict(await engine.app.database.fetch(query))
    longer = {lease for lease, until in after.items() if until > before[lease]}
    assert longer == {shares[0].lease}
    await engine.settle(ship, shares[0].ack_ids)
    assert await engine.extend(ship, shares[0].ack_ids) == list(shares[0].ack_ids)


async def test_when_the_store_is_away_a_settle_fails_and_may_be_tried_again(
    engine: Engine, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship = await consume()
    (share,) = await received(engine, ship, "a")

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("it is away")

    with monkeypatch.context() as patched:
        patched.setattr(store, "settle", away)
        with pytest.raises(StoreUnavailable):
            await engine.settle(ship, share.ack_ids)
    assert await engine.settle(ship, share.ack_ids) == []
