"""Isolation of calls that share a task: what your code leaves behind in one call is not there for the next.

A task has one context, and no variable can be taken out of it. So handlers run in copies of their actor's context. To run
each message in a new one would take longer than all else that an executor does for a message that does nothing. So it takes
a new one only when a handler has changed the last.

A cancellation of the task that calls would reach whatever the task waits for next. A scope that is left open can't be
closed by anyone else, so another task takes the place of that one, see `headrace.runtime.execution.actors`.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from types import FrameType
from typing import Any, TypeVar, cast

import anyio
import anyio.lowlevel

from headrace.runtime.user_code import CodeExited, interrupts, is_yours, line_of

R = TypeVar("R")


@types.coroutine
def in_context(context: Context, call: Callable[..., Awaitable[R]], *args: Any) -> Generator[Any, Any, R]:
    """Call an async function in this context, in the task that awaits it.

    It does what `await` does, as PEP 380 says for `yield from`, with each step below `Context.run`.
    """
    coroutine = _awaited(call, args)
    step: Callable[[Any], Any] = coroutine.send
    value: Any = None
    while True:
        try:
            awaited = context.run(step, value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            value = None  # an exception that is raised again must not be kept by its own traceback
        try:
            value = yield awaited
        except BaseException as error:
            # The future has the error, whose traceback has this frame.
            step, value, awaited = coroutine.throw, error, None
        else:
            step = coroutine.send


async def _awaited(call: Callable[..., Awaitable[R]], args: tuple[Any, ...]) -> R:
    return await call(*args)


def changed(context: Context, base: Context) -> bool:
    """Return whether a copy of a context has other values than that."""
    try:
        return context != base
    except BaseException:  # a variable has another value now, whose `__eq__` has raised
        return True


async def in_own_task(call: Callable[..., Awaitable[R]], *args: Any) -> R:
    """Call your async function in a separate task.

    Raises:
        Exception: what it raises.
        CodeExited: it raised what would end the program.
        CancelledError: it has cancelled its task.
        RuntimeError: it has left a scope open.
    """
    whole = anyio.CancelScope()

    async def scoped() -> R:
        with whole:
            try:
                return await call(*args)
            except (Exception, asyncio.CancelledError):
                raise
            except BaseException as error:  # it would leave the event loop
                if interrupts(error):
                    raise
                raise CodeExited(error) from error
        raise asyncio.CancelledError

    return await joined(asyncio.create_task(scoped()), whole)


async def joined(task: asyncio.Task[R], whole: anyio.CancelScope) -> R:
    """Wait for a task whose scope is cancelled if this task is cancelled. Returns its result."""
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        whole.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        if task.cancelled() or task.exception() is None:
            raise
    return task.result()


def line_in_work(task: asyncio.Task[Any], frame: FrameType | None) -> str | None:
    """Return the line of your code at which a handler is, such as `service.py:14 in ship`. None if it is at none.

    Args:
        task: the one that has called it.
        frame: the innermost one of the thread in which it runs. None if it waits.
    """
    here = frame
    while here is not None and not is_yours(here):
        if here.f_code is in_context.__code__:  # its task runs, but between two steps of the handler
            return _awaited_line(here.f_locals.get("coroutine"))
        here = here.f_back
    return line_of(frame) or _awaited_line(task.get_coro())


def _awaited_line(awaited: Any) -> str | None:
    found = None
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None and is_yours(frame):
            found = line_of(frame)
        if frame is not None and frame.f_code is in_context.__code__:
            awaited = frame.f_locals.get("coroutine")
        else:
            awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return found


def own_task() -> asyncio.Task[Any]:
    """Return the task that this code runs in."""
    return cast("asyncio.Task[Any]", asyncio.current_task())


def is_cancelled() -> bool:
    """Return whether a scope has cancelled this task, such as the end of a drain or a timeout."""
    return anyio.current_effective_deadline() == float("-inf")


def failed_inside(error: BaseException) -> bool:
    """Return whether a call of your code has failed with this exception. Otherwise its task is cancelled, or the
    program is interrupted.

    A cancellation from within the call is a failure: it has waited for something else that was cancelled.
    """
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return not is_cancelled()
    return not interrupts(error)


async def undisturbed(call: Callable[..., Awaitable[R]], *args: Any) -> R:
    """Call an async function of ours, and again after a cancellation that is no scope's. That was meant for your code, which
    the task has left in the meantime.
    """
    task = own_task()
    while True:
        try:
            return await call(*args)
        except asyncio.CancelledError:
            if is_cancelled() or not task.cancelling():
                raise
            _take_back(task)


async def absorb_cancellation(task: asyncio.Task[Any]) -> None:
    """Take back a cancellation that a call of your code has left in this task, if `task.cancelling()`. Otherwise it would
    end the task, or another call. A timeout of an old library may leave one, when its block ends in that moment.

    Raises:
        CancelledError: a scope has cancelled the task. Your code continued and returned although it was to stop, and it
            may have done half of its work.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()
    await undisturbed(asyncio.sleep, 0)  # where one is raised that has not been yet
    _take_back(task)


def left_open(error: RuntimeError) -> bool:
    """Return whether the exit of one of our scopes has failed since your code has left a scope open in this task. That is
    what an async generator does which holds a timeout or a task group, and is not closed.
    """
    return str(error).startswith("Attempted to exit a cancel scope that isn't")


def _take_back(task: asyncio.Task[Any]) -> None:
    while task.cancelling():
        task.uncancel()
