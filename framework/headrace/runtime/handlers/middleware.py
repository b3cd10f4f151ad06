"""Middleware: runs around every handler, in the order in which it was added, the first one outermost.

    @app.middleware
    async def timed(delivery: Message | Batch, call_next: Next) -> Any:
        began = time.perf_counter()
        try:
            return await call_next()
        finally:
            print(delivery.consumer, time.perf_counter() - began)

A middleware sees what the handler returns and raises, including `Retry` and `Reject`. Its own return value or
exception replaces that. If it returns neither of these, the message is acked, even
if it has never called `call_next`. It may call `call_next` again after the call before has ended, to
try once more. The handler then gets a fresh transaction and fresh dependencies. A payload that
can't be decoded does not reach it.

It can't change two things: the outcomes that a handler gave single messages of its batch, and what
a transaction has committed.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from headrace.model.errors import ConfigurationError
from headrace.model.outcomes import Reject, Retry
from headrace.runtime.calls import Call
from headrace.runtime.handlers.signature import is_async, name_of
from headrace.runtime.messages.batch import Batch

Next = Callable[[], Awaitable[Any]]
"""Runs the inner layers down to the handler, and returns what they return."""

Middleware = Callable[[Any, Next], Awaitable[Any]]


def check_middleware(given: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Return the middleware as a tuple. Raises `ConfigurationError` for what can't run around a handler."""
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
    """Return the call with all middleware around it. `batch`: whether it takes batches."""
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
            if running:  # two concurrent calls would share the transaction of the delivery
                raise RuntimeError("call_next was called while it still runs: wait for the first call to end.")
            running = True
            try:
                return await call(payload, delivery)
            finally:
                running = False

        return await middleware(delivery, call_next)

    return wrapped


def _unsaid(call: Call) -> Call:
    """Return the call of a batch, which first clears the outcomes that an earlier call gave its messages."""

    async def wrapped(payloads: Any, batch: Batch) -> Any:
        batch.failures.clear()
        return await call(payloads, batch)

    return wrapped


def _for_all(call: Call) -> Call:
    """Return the call of a batch, where a returned `Retry` or `Reject` applies to all messages without
    another outcome."""

    async def wrapped(payloads: Any, batch: Batch) -> Any:
        result = await call(payloads, batch)
        if isinstance(result, (Retry, Reject)):
            for message in batch.messages:
                batch.failures.setdefault(message.seq, result)
        return result

    return wrapped
