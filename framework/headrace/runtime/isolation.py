"""Isolation of context variables: what your code sets in one call is not there for the next.

A task has one context, and no variable can be taken out of it. So handlers run in copies of their actor's context. A new
copy per message would cost a quarter of a message that does nothing, so an executor takes a new one only when a handler
has changed the last.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context
from typing import Any, TypeVar

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
            step, value = coroutine.throw, error
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
