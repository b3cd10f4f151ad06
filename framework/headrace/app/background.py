"""Background work beside a block of foreign code: `async with in_background(work, …): …`.

This is not a task group, since the cancel scope of a task group must be left by the task that entered it, and while it
is cancelled it cancels each await of the block, also in the block's own clean-up. The block may be the lifespan of a web
framework, and some frameworks call start and stop from different tasks. The work is therefore one separate task, from connecting to disconnecting. Its
failure is treated as `asyncio.TaskGroup` treats the failure of a child: the task that entered the
block is cancelled once, and the block raises the cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio

from headrace.model.text.error_text import text_of
from headrace.runtime.user_code import interrupts

RELEASE_TIMEOUT = 10.0
"""Seconds that the work may take to end after `hurry`. Then it is cancelled."""

Work = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]
"""A function that works until it is asked to end. It calls its argument once it has started."""


@asynccontextmanager
async def in_background(work: Work, end: Callable[[], None], hurry: Callable[[], None]) -> AsyncIterator[None]:
    """Start the work and wait until it is up. At the end of the block, end it and wait for that.

    Args:
        work: what to do.
        end: asks the work to end.
        hurry: asks the work to end immediately. Called when the block, or the wait for the end, is cancelled.

    Raises:
        An error that keeps the work from starting is raised unchanged. A later error of the work is
        raised together with the block's, as an `ExceptionGroup`.
    """
    task = _BackgroundTask(work)
    await task.start()
    failure: Exception | None = None
    try:
        yield
    except asyncio.CancelledError:
        if not task.detach():
            await task.cancel(hurry)
            raise
    except Exception as error:  # the caller's error: it must not interrupt the work
        failure = error
    task.detach()
    end()
    await task.wait(hurry)
    task_failure = task.failure()
    if failure is not None and task_failure is not None:
        raise ExceptionGroup("both the block and the background work failed", [failure, task_failure])
    if failure is not None:
        raise failure
    if task_failure is not None:
        raise task_failure


class BackgroundWorkDied(Exception):
    """The background work ended with an exception that ends a program, such as `SystemExit`. Without
    this, the program could end as if it had succeeded, or continue without the work.
    """


class _BackgroundTask:
    """The task that does the work, and its host, which is the task that runs the block."""

    def __init__(self, work: Work) -> None:
        self._started = asyncio.Event()
        self._host: asyncio.Task[Any] | None = None
        self._cancelled = False  # whether we cancelled the host
        self._ending = False  # whether we cancelled the task
        self._task = asyncio.create_task(_work(work, self._started.set))
        self._task.add_done_callback(self._done)

    async def start(self) -> None:
        """Wait until the work is up. Raises the error that prevents it."""
        try:
            await self._started.wait()
        except asyncio.CancelledError:
            await self._cancel()
            raise
        if self._task.done():
            self._task.result()
        self._host = asyncio.current_task()

    def _done(self, _: asyncio.Task[None]) -> None:
        self._started.set()
        if self._host is not None and self._error() is not None:
            self._cancelled = self._host.cancel()

    def failure(self) -> Exception | None:
        """The error of the work, if it has failed. Raises a Ctrl-C, which is for the whole program."""
        error = self._error()
        if error is None or isinstance(error, Exception):
            return error
        raise error

    def _error(self) -> BaseException | None:
        if not self._task.done() or (self._task.cancelled() and self._ending):
            return None
        if self._task.cancelled():
            return BackgroundWorkDied("The app has stopped, since other code in this process has cancelled its task.")
        return self._task.exception()

    def detach(self) -> bool:
        """Detach the host at the end of the block. Returns whether only the failure of the work cancelled it."""
        host, self._host = self._host, None
        return self._cancelled and host is not None and host is asyncio.current_task() and host.uncancel() == 0

    async def wait(self, hurry: Callable[[], None]) -> None:
        """Wait for the end of the work."""
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            await self.cancel(hurry)
            raise

    async def cancel(self, hurry: Callable[[], None]) -> None:
        """Make the work release its messages, and end it."""
        hurry()
        with anyio.move_on_after(RELEASE_TIMEOUT, shield=True):
            await asyncio.wait([self._task])
        await self._cancel()

    async def _cancel(self) -> None:
        self._ending = True
        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # mark the exception as retrieved: the cancellation takes precedence


async def _work(work: Work, started: Callable[[], None]) -> None:
    try:
        await work(started)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        if interrupts(error):
            raise
        raise BackgroundWorkDied(f"The app died from {type(error).__name__}: {text_of(error)}") from error
