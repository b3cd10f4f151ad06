"""The report of a handler that hangs names the line of your code at which it is, also while its task is between two steps."""

from __future__ import annotations

import asyncio
import sys
from contextvars import Context, copy_context
from typing import Any, cast

import pytest

from headrace.runtime.isolation import in_context, line_in_work

pytestmark = [pytest.mark.unit, pytest.mark.asyncio]


async def stubborn(event: asyncio.Event) -> None:
    while True:
        try:
            await event.wait()
        except asyncio.CancelledError:
            pass
        else:
            return


LINE = stubborn.__code__.co_firstlineno + 3


BETWEEN = """
def run(step, value):
    look()
    return step(value)
"""


class _Steps:
    """A context that looks before each step at where the handler is. The frame of `run` is none of yours, as those of the
    event loop."""

    def __init__(self) -> None:
        self.lines: list[str | None] = []
        names: dict[str, Any] = {"__name__": "asyncio", "look": self._look}
        exec(BETWEEN, names)
        self.run = names["run"]

    def _look(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.lines.append(line_in_work(task, sys._getframe(1)))


async def test_a_handler_whose_task_runs_between_two_of_its_steps_is_named_by_its_own_line() -> None:
    event, steps = asyncio.Event(), _Steps()
    task = asyncio.ensure_future(_work(cast("Context", steps), event))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    event.set()
    await task
    waiting = steps.lines[1:]
    assert len(waiting) >= 3
    assert all(line is not None and line.endswith(f"test_line_in_work.py:{LINE} in stubborn") for line in waiting)


async def test_a_handler_that_waits_is_named_by_the_line_at_which_it_waits() -> None:
    event = asyncio.Event()
    task = asyncio.ensure_future(_work(copy_context(), event))
    await asyncio.sleep(0)
    assert (line_in_work(task, None) or "").endswith(f"test_line_in_work.py:{LINE} in stubborn")
    event.set()
    await task


async def _work(context: Context, event: asyncio.Event) -> None:
    await in_context(context, stubborn, event)
