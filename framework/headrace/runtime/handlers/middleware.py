"""Middleware: what runs around every handler, in the order in which it was added, the first one outermost.

    @app.middleware
    async def timed(delivery: Message | Batch, call_next: Next) -> Any:
        began = time.perf_counter()
        try:
            return await call_next()
        finally:
            print(delivery.consumer, time.perf_counter() - began)

It sees what the handler returns and raises, `Retry` and `Reject` among it, and what it returns or raises itself counts instead: if it
returns, the message is acked, also when it has never called `call_next`. It may call that again when the call before has ended, to try
once more; the handler then gets a fresh transaction and fresh dependencies. A payload that can't be decoded does not come here.

Two things are out of its reach: what a handler said of single messages of its batch, and what a transaction has committed.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from headrace.model.errors import ConfigurationError
from headrace.model.outcomes import Reject, Retry
from headrace.runtime.batch import Batch
from headrace.runtime.handlers.signature import is_async, name_of
from headrace.runtime.wiring import Call

Next = Callable[[], Awaitable[Any]]
"""Runs what is further in, the handler at last, and returns what that returns."""

Middleware = Callable[[Any, Next], Awaitable[Any]]


def check_middleware(given: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """What was given. Raises `ConfigurationError` for what can't be run around a handler."""
    if callable(given):
        raise ConfigurationError(f"middleware={name_of(given)} must be a list, such as [{name_of(given)}].")
    return tuple(_checked(one) for one in given)


def _checked(one: Middleware) -> Middleware:
    if not callable(one) or not is_async(one):
        raise ConfigurationError(
            f"The middleware {name_of(one)!r} must be a coroutine function: `async def {name_of(one)}(delivery, call_next)`."
        )
    try:
        inspect.signature(one).bind(None, None)
    except TypeError:
        raise ConfigurationError(
            f"The middleware {name_of(one)!r} must take two arguments: the message or the batch, and `call_next`."
        ) from None
    return one


def around(call: Call, middleware: Sequence[Middleware], *, batch: bool = False) -> Call:
    """The call with all of it around. `batch`: whether it is of batches."""
    if not middleware:
        return call
    if batch:
        call = _unsaid(call)
    for one in reversed(middleware):
        call = _around(call, one)
    return _for_all(call) if batch else call


def _around(call: Call, middleware: Middleware) -> Call:
    async def wrapped(payload: Any, delivery: Any) -> Any:
        running = False

        async def call_next() -> Any:
            nonlocal running
            if running:  # two at once would share the transaction of the delivery
                raise RuntimeError("call_next was called while it still runs: wait for the first call to end.")
            running = True
            try:
                return await call(payload, delivery)
            finally:
                running = False

        return await middleware(delivery, call_next)

    return wrapped


def _unsaid(call: Call) -> Call:
    """The call of a batch, without what a call before said of its messages."""

    async def wrapped(payloads: Any, batch: Batch) -> Any:
        batch.failures.clear()
        return await call(payloads, batch)

    return wrapped


def _for_all(call: Call) -> Call:
    """The call of a batch; a `Retry` or `Reject` that comes out counts for all of which nothing else was said."""

    async def wrapped(payloads: Any, batch: Batch) -> Any:
        result = await call(payloads, batch)
        if isinstance(result, (Retry, Reject)):
            for message in batch.messages:
                batch.failures.setdefault(message.seq, result)
        return result

    return wrapped
