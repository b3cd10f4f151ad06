"""The turns of what screens read, and values that are read once for all of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from headrace.server.errors import Problem
from headrace.server.live import pacing
from headrace.server.live.pacing import KeptReads, Pace, is_poll
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(pacing, "RATE", 2.0)
    monkeypatch.setattr(pacing, "BURST", 3.0)
    return Clock()


async def test_turns_come_at_a_rate_after_a_burst(clock: Clock) -> None:
    pace = Pace(clock)
    assert [pace.take(5.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 1.0]
    assert pace.take() is None
    clock.now += 2.0
    assert pace.take() == 0.0


async def test_a_turn_that_is_far_away_is_refused(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "LONGEST", 0.0)
    pace = Pace(clock)
    for _ in range(3):
        await pace.turn("ops")
    with pytest.raises(Problem, match="Too many screens"):
        await pace.turn("ops")


async def test_turns_go_round_the_users_that_wait_for_them(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    pace, served = Pace(clock), []
    gates: list[asyncio.Event] = []

    async def sleep(seconds: float) -> None:
        gates.append(gate := asyncio.Event())
        await gate.wait()
        clock.now += seconds

    monkeypatch.setattr(pacing.anyio, "sleep", sleep)

    async def poll(user: str) -> None:
        with suppress(Problem):
            await pace.turn(user)
            served.append(user)

    tasks = [asyncio.ensure_future(poll("busy")) for _ in range(20)]
    await asyncio.sleep(0)
    tasks += [asyncio.ensure_future(poll(user)) for user in ("calm", "other")]
    for _ in range(200):
        await asyncio.sleep(0)
        if gates:
            gates.pop().set()
    await asyncio.gather(*tasks)
    assert served.count("busy") < 20, "a user has a few turns to wait for"
    assert {"calm", "other"} <= set(served)
    after = served.index("calm")
    assert "busy" in served[after:], "before the last of the busy user"


async def test_a_value_is_read_again_at_last_though_no_turn_is_free(clock: Clock) -> None:
    pace = Pace(clock)
    kept, answers = KeptReads(pace, clock), ["old", "new"]

    async def read() -> str:
        return answers.pop(0)

    assert await kept.get("a", read) == "old"
    clock.now += pacing.OLDEST
    while pace.take() is not None:
        pass
    assert await kept.get("a", read) == "new"


async def test_a_value_is_read_once_for_all_and_again_when_it_is_old_or_forgotten(clock: Clock) -> None:
    kept, read = KeptReads(Pace(clock), clock), 0

    async def count() -> int:
        nonlocal read
        read += 1
        await asyncio.sleep(0)
        return read

    assert await asyncio.gather(*(kept.get("a", count) for _ in range(5))) == [1] * 5
    assert await kept.get("b", count) == 2
    clock.now += pacing.FRESH
    assert await kept.get("a", count) == 3
    kept.forget()
    assert await kept.get("a", count) == 4


async def test_an_old_value_stays_while_no_turn_is_free(clock: Clock) -> None:
    pace = Pace(clock)
    kept, read = KeptReads(pace, clock), 0

    async def count() -> int:
        nonlocal read
        read += 1
        return read

    await kept.get("a", count)
    clock.now += pacing.FRESH
    while pace.take() is not None:
        pass
    assert await kept.get("a", count) == 1
    clock.now += 1.0
    assert await kept.get("a", count) == 2


async def test_a_read_that_began_before_a_change_is_not_kept(clock: Clock) -> None:
    kept, answers = KeptReads(Pace(clock), clock), ["old", "new"]

    async def read() -> str:
        answer = answers.pop(0)
        if answer == "old":
            kept.forget()
        return answer

    assert [await kept.get("a", read) for _ in range(3)] == ["old", "new", "new"]


async def test_the_number_of_kept_values_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "MAX_KEPT", 2)
    kept = KeptReads(Pace(clock), clock)

    async def read() -> Any:
        return object()

    for name in "abc":
        await kept.get(name, read)
    assert list(kept._kept) == ["b", "c"]
    assert not kept._locks


async def test_only_what_screens_ask_again_beside_the_snapshot_takes_turns() -> None:
    poll = [(b"x-headrace-console", b"poll")]
    assert is_poll(poll, "/v1/jobs")
    assert not is_poll(poll, "/v1/live/streams")
    assert not is_poll([(b"x-headrace-console", b"1")], "/v1/jobs")
    assert not is_poll([], "/v1/jobs")


async def test_the_screens_of_one_token_leave_turns_to_the_others(api: Api) -> None:
    await api.stream()
    admin, poll = api.server.app.admin, {"x-headrace-console": "poll"}
    made = [await admin.create_token(name, ["admin:orders"]) for name in ("busy", "calm")]
    busy, calm = (one.token for one in made)
    api.server.access.changed(made[0].id)

    async def ask(token: str) -> int:
        headers = {**poll, "authorization": f"Bearer {token}"}
        return (await api.client.get("/v1/streams/orders", headers=headers)).status_code

    flood = [asyncio.ensure_future(ask(busy)) for _ in range(20)]
    await asyncio.sleep(0.1)
    assert await ask(calm) == 200
    assert 429 in await asyncio.gather(*flood)


async def test_polls_are_refused_when_too_many_come_and_other_requests_are_not(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "LONGEST", 0.0)
    poll = {"x-headrace-console": "poll"}
    found = [await api.client.get("/v1/jobs", headers=poll) for _ in range(8)]
    assert [one.status_code for one in (found[0], found[-1])] == [200, 429]
    assert found[-1].headers["retry-after"]
    assert (await api.client.get("/v1/jobs")).status_code == 200
