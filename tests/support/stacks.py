"""End a test that hangs, and print where the program waits."""

from __future__ import annotations

import asyncio
import sys
from typing import Any


def cancel_after(seconds: float) -> asyncio.TimerHandle:
    """Cancel the current task after some seconds, unless the returned timer is cancelled before. The stack
    of every asyncio task is printed first.

    Unlike a cancel scope, it may be used in the teardown of a fixture, which is another task than its
    setup.
    """
    return asyncio.get_running_loop().call_later(seconds, _cancel, asyncio.current_task())


def _cancel(task: asyncio.Task[Any]) -> None:
    for one in asyncio.all_tasks():
        one.print_stack(file=sys.__stderr__)
    task.cancel()
