"""Middleware: what runs around every handler, in the order in which it was added, the first one outermost.

    @app.middleware
    async def timed(delivery: Message | Batch, call_next: Next) -> Any:
        began = time.perf_counter()
        try:
            return await call_next()
        finally:
            print(delivery.consumer, time.perf_counter() - began)

It sees what the handler returns and raises, and what it returns or raises itself counts instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace.runtime.wiring import Call

Next = Callable[[], Awaitable[Any]]
Middleware = Callable[[Any, Next], Awaitable[Any]]


def around(call: Call, middleware: Sequence[Middleware]) -> Call:
    """The call with all of it around."""
    for one in reversed(middleware):
        call = _around(call, one)
    return call


def _around(call: Call, middleware: Middleware) -> Call:
    async def wrapped(payload: Any, delivery: Any) -> Any:
        return await middleware(delivery, lambda: call(payload, delivery))

    return wrapped
