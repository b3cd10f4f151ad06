"""The pool of actors: how many there are while it is resized."""

from __future__ import annotations

from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from headrace.flow.lanes import Lanes
from headrace.flow.signal import Signal
from headrace.runtime.execution.actors import Actors, Work
from headrace.runtime.messages.message import Message

pytestmark = pytest.mark.asyncio


class Ready:
    """Lanes of one message each."""

    def __init__(self, count: int) -> None:
        self.left = list(range(count))
        self.on_ready, self.on_drained = Signal(), Signal()

    @property
    def ready(self) -> int:
        return len(self.left)

    def take(self) -> Any:
        return self.left.pop() if self.left else None

    def next(self, done: Any, onward: bool) -> None:
        """There is none, since each lane has one message."""


class Gate:
    """Work that is done when the gate opens, all of it in one turn of the event loop."""

    unit = 1

    def __init__(self) -> None:
        self.open = anyio.Event()
        self.begun = 0

    async def run(self, *_: Any) -> None:
        self.begun += 1
        await self.open.wait()


async def until(question: Any) -> None:
    """Let the others run until the answer is true."""
    for _ in range(1000):
        if question():
            return
        await anyio.lowlevel.checkpoint()
    raise AssertionError("it never came to that")


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (4, 2), (8, 7), (8, 1)])
async def test_actors_that_are_done_at_the_same_time_do_not_all_leave_when_one_is_surplus(
    before: int, after: int, timed: bool
) -> None:
    """They did, and then none was left until the number was changed again."""
    lanes, work = Ready(3 * before), Gate()
    actors = Actors(
        cast("Work", work), cast("Lanes[Message]", lanes), timed=timed, least=1, on_spoilt=lambda: pytest.fail("spoilt")
    )
    async with anyio.create_task_group() as group:
        group.start_soon(actors.run, before)
        await until(lambda: work.begun == before)
        actors.resize(after)
        work.open.set()
        await until(lambda: not lanes.left)
        await until(lambda: actors.busy == 0)
        assert actors.count == after
        actors.finish()
    assert actors.count == 0
