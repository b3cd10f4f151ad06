"""Tasks that outlive the requests that started them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from headrace.model.errors import HeadraceError
from headrace.model.log import Log
from headrace.server.errors import not_running

log = Log("headrace")


class BackgroundTasks:
    """The tasks of an engine. They are plain asyncio tasks, since a task group would cost too much at
    this rate.

    A task's error is logged. The requests that wait for the task get it in another way.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_open = False

    def open(self) -> None:
        """Accept tasks from now on."""
        self.is_open = True

    def start(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Start a task. Raises `StoreUnavailable` unless tasks are accepted."""
        if not self.is_open:
            raise not_running()
        task = asyncio.ensure_future(_run(function, *args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait until no task is running."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Accept no more tasks, and cancel the running ones."""
        self.is_open = False
        with anyio.CancelScope(shield=True):
            # Let every task begin, since one that is cancelled before would leave its requests
            # unanswered.
            await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()


async def _run(function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
    try:
        await function(*args)
    except HeadraceError as error:
        log.warning("server task failed", error=error)
    except Exception as error:
        log.error("server task failed unexpectedly", error=error, exc_info=error)
