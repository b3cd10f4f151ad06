"""The pool of actors: how many there are while it is resized."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest

from headrace.flow.lanes import Lanes
from headrace.flow.signal import Signal
from headrace.model.handling import Handling
from headrace.runtime.execution.actors import Actors, Work
from headrace.runtime.messages.message import Message
from tests.runtime.running import Gate
from tests.support.waiting import until

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


class Waiting:
    """Work that is done when its gate opens, all of it in one turn of the event loop."""

    unit = 1

    def __init__(self) -> None:
        self.gate = Gate()

    async def run(self, *_: Any) -> None:
        await self.gate.wait()


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (4, 2), (8, 7), (8, 1)])
async def test_actors_that_are_done_at_the_same_time_do_not_all_leave_when_one_is_surplus(
    before: int, after: int, timed: bool
) -> None:
    """They did, and then none was left until the number was changed again."""
    lanes, work = Ready(3 * before), Waiting()
    actors = Actors(
        cast("Work", work),
        cast("Lanes[Message]", lanes),
        Handling(timeout=60.0 if timed else None),
        on_spoilt=lambda: pytest.fail("spoilt"),
    )
    async with anyio.create_task_group() as group:
        group.start_soon(actors.run, before)
        await work.gate.until(before)
        actors.resize(after)
        work.gate.open()
        await until(lambda: not lanes.left)
        await until(lambda: actors.busy == 0)
        assert actors.count == after
        actors.finish()
    assert actors.count == 0
