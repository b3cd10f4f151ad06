"""One tenant's costly calls leave connections, memory and turns to the others."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from headrace import App
from headrace.model.errors import InvalidInput
from headrace.model.specs import ConsumerSpec
from headrace.server.data_plane.publish_batching import Incoming
from headrace.server.engine import Engine
from headrace.server.errors import Problem
from headrace.server.options import Options
from headrace.server.transport.limits import Limits
from headrace.store.connections.fair_shares import FairShares, NoPlace
from tests.runtime.running import eventually
from tests.server.calling import Api

SLOW = "[ab]*a[ab]{16}c"
"""A regular expression that is slow on a long text of these letters, without a backreference."""


async def fill(api: Api, stream: str = "hostile", count: int = 40) -> None:
    """Create a stream whose messages are slow to match."""
    chance = random.Random(7)
    await api.stream(stream)
    await api.publish(
        *((f"k.{i}", {"text": chance.randbytes(200_000).translate(b"ab" * 128).decode()}) for i in range(count)),
        stream=stream,
    )


async def _judging(api: Api) -> bool:
    return bool(api.server.app.database.statistics()["judging"])


@pytest.mark.asyncio
async def test_slow_conditions_leave_connections_to_publishers(api: Api) -> None:
    await fill(api)
    await api.stream("calm")
    peeks = [
        asyncio.ensure_future(api.answer("GET", "/streams/hostile/messages", where=f"data.text regex '{SLOW}'"))
        for _ in range(30)
    ]
    database = api.server.app.database
    await eventually(lambda: _judging(api))
    for i in range(20):
        await api.publish((f"k.{i}", i), stream="calm")
    running = [one for one in peeks if not one.done()]
    assert len(running) > 10, "the peeks must still be running"
    assert database.statistics()["judging"] == 1
    for one in peeks:
        one.cancel()
    await asyncio.gather(*peeks, return_exceptions=True)


@pytest.mark.asyncio
async def test_places_go_round_their_owners() -> None:
    shares = FairShares(3, 2, 5)
    served: list[str] = []

    async def use(owner: str, until: asyncio.Event) -> None:
        async with shares.place(owner):
            served.append(owner)
            await until.wait()

    gates = [asyncio.Event() for _ in range(10)]
    tasks = [asyncio.ensure_future(use("greedy", gate)) for gate in gates[:7]]
    await asyncio.sleep(0)
    tasks += [asyncio.ensure_future(use(owner, gate)) for owner, gate in zip("abc", gates[7:], strict=True)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert served == ["greedy", "greedy", "a"]
    with pytest.raises(NoPlace):
        async with shares.place("greedy"):
            pass
    gates[0].set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert served[3:] == ["greedy"], "the owner whose turn it is"
    gates[1].set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert served[4:] == ["b"], "another owner before a second turn"
    tasks[-1].cancel()
    for gate in gates:
        gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (shares.in_use, shares.owners) == (0, 0)


@pytest.mark.asyncio
async def test_a_wait_for_a_place_that_ends_leaves_nothing() -> None:
    shares = FairShares(1, 1, 5)
    async with shares.place("a"):
        with pytest.raises(NoPlace):
            async with shares.place("b", 0.0):
                pass
    assert (shares.in_use, shares.owners) == (0, 0)


@pytest.mark.asyncio
async def test_callers_without_a_token_are_one_owner() -> None:
    shares = FairShares(1, 1, 5)
    done: list[int] = []

    async def use(number: int) -> None:
        async with shares.place(None):
            await asyncio.sleep(0)
            done.append(number)

    await asyncio.gather(*(use(number) for number in range(4)))
    assert done == [0, 1, 2, 3]


@pytest.mark.asyncio
async def test_a_hundred_slow_consumers_leave_connections_to_publishers(api: Api) -> None:
    await fill(api, count=3)
    await api.stream("calm")
    for i in range(12):
        await api.consumer(f"c{i}", "hostile", where=f"data.text regex '{SLOW}'")
    receives = [
        asyncio.ensure_future(api.answer("POST", f"/streams/hostile/consumers/c{i}/receive", {"wait_for": "20s"}))
        for i in range(12)
    ]
    await eventually(lambda: _judging(api))
    for i in range(20):
        await api.publish((f"k.{i}", i), stream="calm")
    assert api.server.app.database.statistics()["judging"] <= 2
    for one in receives:
        one.cancel()
    await asyncio.gather(*receives, return_exceptions=True)


@pytest.mark.asyncio
async def test_filters_and_regular_expressions_are_bounded(api: Api) -> None:
    await api.stream()
    many = [f"k{i}" for i in range(101)]
    path = "/streams/orders/consumers"
    assert "100 filters" in (await api.refused("POST", path, {"name": "c", "filters": many}, status=422))["summary"]
    await api.refused("GET", "/streams/orders/messages", status=422, key_pattern=many)
    database = api.server.app.database
    with pytest.raises(InvalidInput, match="100 filters"):
        await database.fetchval("select headrace_internal.condition($1, null)", many)
    for pattern in (r"(a+)\1", r"^(a+)(b+)\2$", r"\\(a)\1"):
        where = {"field": "data.x", "op": "regex", "value": pattern}
        error = await api.refused("POST", path, {"name": "c", "where": where}, status=422)
        assert "back reference" in error["summary"]
    await api.consumer("fine", where={"field": "data.x", "op": "regex", "value": r"\\1|[0-9]{3}"})


@pytest.mark.asyncio
async def test_one_token_has_a_part_of_the_requests(dsn: str) -> None:
    limits = Limits(Options(max_requests_per_token=2))
    scopes: list[dict[str, Any]] = [{}, {}, {}]
    limits.admit(scopes[0], "hostile")
    limits.admit(scopes[1], "hostile")
    with pytest.raises(Problem) as refused:
        limits.admit(scopes[2], "hostile")
    assert (refused.value.status, refused.value.code) == (429, "too_many_requests_of_token")
    limits.admit(scopes[2], "calm")
    with limits.wait(scopes[0]):
        limits.admit(waiting := {}, "hostile")  # a request that waits for messages takes no part
        limits.leave(waiting)
    for scope in scopes:
        limits.leave(scope)
    assert limits._callers == {}


@pytest.mark.asyncio
async def test_what_is_unused_is_forgotten(dsn: str) -> None:
    now = 0.0
    app = App(dsn, streams=["orders"])
    engine = Engine(app, lambda: now)
    app.attach(engine)
    async with app.running():
        stream = await engine.stream("orders")
        messages = Incoming()
        messages.add("k", "1")
        for i in range(5):
            await app.admin.create_consumer(ConsumerSpec(stream="orders", name=f"c{i}", filters=(f"k{i}", "k")))
            consumer = await engine.consumer("orders", f"c{i}")
            await engine.publish(stream, messages)
            share = await engine.receive(consumer, 10, 0)
            await engine.settle(consumer, share.ack_ids)
        assert len(engine._caches) == 5
        now = 1000.0
        engine.remove_unused()
        assert len(engine._caches) == 0
        assert engine._caches.size == 0
        assert not engine._publishes
        assert not engine._settles
        assert not engine._receivers


@pytest.mark.asyncio
async def test_bodies_of_the_management_api_are_small(api: Api) -> None:
    await api.stream()
    many = {"name": "wide", "filters": [f"k{i}" for i in range(300_000)]}
    await api.refused("POST", "/streams/orders/consumers", many, status=413)
    await api.publish(("k", "x" * 2_000_000))
