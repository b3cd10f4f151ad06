"""Where a handler runs: on the event loop, in a thread, or in a process of its own."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import anyio.to_thread

from headrace.model.handling import Handling
from headrace.runtime.handler import Handler
from headrace.runtime.wiring import Call


def runner(handler: Handler, handling: Handling) -> Call:
    """The handler, made to run where it should."""
    if handling.runner == "async":
        return handler.apply
    return _in_thread(handler, anyio.CapacityLimiter(handling.concurrency[1]))


def _in_thread(handler: Handler, limiter: anyio.CapacityLimiter) -> Call:
    apply = handler.apply

    async def call(payload: Any, delivery: Any, **dependencies: Any) -> Any:
        # A thread can't be stopped, so it is waited for: a message must not run twice at a time.
        result = await anyio.to_thread.run_sync(
            functools.partial(apply, payload, delivery, **dependencies), limiter=limiter
        )
        # A plain function around an async one, as a decorator may make it, is done when what it returned is.
        return await result if inspect.isawaitable(result) else result

    return call
