"""A server knows the ack ids again that it has just given, and reads all others as before."""

from __future__ import annotations

import pytest

from headrace.server.data_plane import given_leases
from headrace.server.data_plane.given_leases import GivenLeases
from headrace.server.engine import Engine
from tests.server.conftest import Consume
from tests.server.test_settling import received


def test_a_lease_is_known_by_all_of_its_ids_in_their_order_once() -> None:
    given = GivenLeases()
    given.add(1, 7, ["a", "b", "c"])
    for others in ([], ["a"], ["a", "b"], ["a", "c", "b"], ["b", "a", "c"], ["a", "b", "c", "d"], ["a", "b", "c", "a"]):
        assert given.take(1, others) is None
    assert given.take(2, ["a", "b", "c"]) is None  # another consumer's
    assert given.take(1, ["a", "b", "c"]) == 7
    assert given.take(1, ["a", "b", "c"]) is None


def test_the_oldest_leases_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_leases, "MAX_IDS", 5)
    given = GivenLeases()
    for lease in range(4):
        given.add(1, lease, [f"{lease}a", f"{lease}b"])
    assert [given.take(1, [f"{lease}a", f"{lease}b"]) for lease in range(4)] == [None, None, 2, 3]
    given.add(1, 9, ["x"])
    given.clear()
    assert given.take(1, ["x"]) is None


@pytest.mark.asyncio
async def test_ids_of_a_lease_that_was_acked_are_stale(engine: Engine, consume: Consume) -> None:
    consumer = await consume()
    (share,) = await received(engine, consumer, "abcde")
    ids = list(share.ack_ids)
    assert await engine.settle(consumer, ids) == []
    assert (engine.counts.acked, engine.counts.stale) == (5, 0)
    assert sorted(await engine.settle(consumer, ids)) == sorted(ids)
    assert (engine.counts.acked, engine.counts.stale) == (5, 5)


@pytest.mark.asyncio
async def test_a_lease_that_was_given_and_lost_is_stale_as_a_whole(engine: Engine, consume: Consume) -> None:
    consumer = await consume()
    (share,) = await received(engine, consumer, "abc")
    await engine.release(consumer, share)
    assert await engine.settle(consumer, list(share.ack_ids)) == list(share.ack_ids)
    again = await engine.receive(consumer, 3)
    assert await engine.settle(consumer, list(reversed(again.ack_ids))) == []
