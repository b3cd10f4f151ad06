"""Turns: while several tokens are active, each has a limited number of requests in progress."""

from __future__ import annotations

import asyncio

import pytest

from headrace.server.transport.turns import DECREASE, TARGET, Turns

pytestmark = pytest.mark.asyncio

LATE = 2 * TARGET


class Requests:
    """Requests that take a turn and stay in progress until they are ended."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.began: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def start(self, token: str, *names: str) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(token, name))
        await self.settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
        await self.settle()

    def waiting(self) -> int:
        return len(self.tasks) - len(self.began)

    async def _run(self, token: str, name: str) -> None:
        await self.turns.take(token)
        self.began.append(name)
        try:
            await self._ends[name].wait()
        finally:
            self.turns.give_back(token)

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def with_one_turn_each() -> Requests:
    """Two tokens with a request in progress each, "f" of "few" and "m" of "many", and a limit of one."""
    requests = Requests(Turns(100))
    await requests.start("few", "f")
    await requests.start("many", "m")
    for _ in range(20):
        requests.turns.adapt(LATE)
    assert requests.turns.limit == 1
    return requests


async def test_a_token_alone_has_all_turns_however_late_the_loop_is() -> None:
    requests = Requests(Turns(100))
    await requests.start("one", *"abc")
    requests.turns.adapt(LATE)
    await requests.start("one", *"def")
    assert "".join(requests.began) == "abcdef"
    await requests.end(*"abcdef")


async def test_a_late_loop_lets_fewer_requests_of_a_token_be_in_progress() -> None:
    requests = Requests(Turns(100))
    many = [f"m{i}" for i in range(20)]
    await requests.start("many", *many)
    await requests.start("few", "f0")
    requests.turns.adapt(LATE)
    assert requests.turns.limit == 20 * DECREASE  # of what is in progress, not of the limit that nothing had reached
    for _ in range(20):
        requests.turns.adapt(LATE)
    assert requests.turns.limit == 1

    await requests.start("many", "late")
    assert "late" not in requests.began
    assert requests.waiting() == 1
    await requests.end("f0")
    await requests.start("few", "f1")
    assert "f1" in requests.began, "a token with few requests does not wait for one with many"

    await requests.end(*many)
    assert "late" in requests.began
    await requests.end("late", "f1")
    assert requests.waiting() == 0


async def test_requests_of_a_token_begin_in_their_order() -> None:
    requests = await with_one_turn_each()
    await requests.start("many", *"abc")
    for ended, begun in zip("mabc", ("fma", "fmab", "fmabc", "fmabc"), strict=True):
        await requests.end(ended)
        assert "".join(requests.began) == begun
    await requests.end("f")


async def test_the_limit_rises_again_while_the_loop_is_in_time() -> None:
    requests = await with_one_turn_each()
    await requests.start("many", *"ab")
    assert requests.began == ["f", "m"]
    for _ in range(20):
        requests.turns.adapt(0.0)
    await requests.settle()
    assert requests.began == ["f", "m", "a", "b"]
    await requests.end(*"fmab")


async def test_calls_that_wait_for_a_connection_count_as_a_late_loop() -> None:
    overloaded = True
    requests = Requests(Turns(100, lambda: overloaded))
    await requests.start("few", "f")
    await requests.start("many", *"abcdefghij")
    requests.turns.adapt(0.0)
    assert requests.turns.limit == 7
    overloaded = False
    requests.turns.adapt(0.0)
    assert requests.turns.limit > 7
    await requests.end(*"fabcdefghij")


async def test_a_cancelled_request_leaves_no_turn_behind() -> None:
    requests = await with_one_turn_each()
    await requests.start("many", *"abc")
    requests.tasks["a"].cancel()
    await requests.end("m")
    requests.tasks["b"].cancel()  # in progress
    await requests.settle()
    assert requests.began == ["f", "m", "b", "c"]
    await requests.end("f", "c")

    # Cancelled in the same step in which its turn is given.
    await requests.start("few", "g")
    await requests.start("many", *"xyz")
    requests.turns.adapt(LATE)
    assert requests.began[-1] == "x"
    requests.turns.give_back("many")
    requests.tasks["y"].cancel()
    await requests.settle()
    assert requests.began[-1] == "z"
    requests.turns.resume("many")
    await requests.end("g", "x", "z")

    # Cancelled in the same step, but before a turn is given.
    await requests.start("few", "h")
    await requests.start("many", "p", "q")
    requests.turns.adapt(LATE)
    requests.tasks["q"].cancel()
    requests._ends["p"].set()
    await requests.settle()
    assert requests.tasks["q"].cancelled()
    await requests.end("h")
    assert requests.turns._in_progress == {}


async def test_a_paused_request_lets_others_of_its_token_begin() -> None:
    requests = await with_one_turn_each()
    await requests.start("many", "a")
    assert requests.began == ["f", "m"]
    requests.turns.give_back("many")  # as a request does that waits for messages
    await requests.settle()
    assert requests.began == ["f", "m", "a"]
    requests.turns.resume("many")
    await requests.end(*"fma")
    assert requests.turns._in_progress == {}


async def test_tokens_are_forgotten_and_nothing_is_measured_while_one_is_active() -> None:
    turns = Turns(100)
    loop = asyncio.get_running_loop()
    for token in map(str, range(1000)):
        await turns.take(token)
        turns.give_back(token)
    assert turns._timer is not None
    turns._active = dict.fromkeys(turns._active, loop.time() - 3600)
    turns._measure(loop)
    assert not turns._active
    assert turns._timer is None
    assert turns.limit == 100
