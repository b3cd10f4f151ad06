"""Runners: run a handler on the event loop, in a thread, or in a worker process.

The handlers that a timeout and the end of a drain can stop:

    async      the handler, at its next `await`
    thread     nothing, so the thread is waited for, since a message must not run twice at a time
    process    anything, by killing the process
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio.to_thread

from headrace.model.clock import Clock
from headrace.model.errors import ConfigurationError
from headrace.model.handling import Handling
from headrace.model.outcomes import Reject, Retry, misreturned
from headrace.runtime.calls import Call
from headrace.runtime.handlers.handler import Handler
from headrace.runtime.handlers.worker_processes import Processes
from headrace.runtime.handlers.worker_protocol import Place
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message, lease_time
from headrace.runtime.slot import current_slot
from headrace.runtime.user_code import CodeExited, interrupts


class Runner:
    """Runs one handler in the configured place, while its context is entered.

    Attributes:
        call: runs the handler. Takes the payload, the delivery, and dependencies by name.
    """

    def __init__(self, handler: Handler, handling: Handling, clock: Clock) -> None:
        self._processes: Processes | None = None
        match handling.runner:
            case "async":
                call = handler.apply
            case "thread":
                call = _in_thread(handler, anyio.CapacityLimiter(handling.concurrency[1]))
            case "process":
                self._processes = Processes(place_of(handler), handling, clock)
                call = self._processes.run
        if handling.batch is not None and handling.publishes is None:  # otherwise its return value is to be published
            call = _outcomes(call)
        self.call: Callable[..., Awaitable[Any]] = call

    async def __aenter__(self) -> Runner:
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the worker processes, when nothing runs any more."""
        if self._processes is not None:
            await self._processes.close()


def _in_thread(handler: Handler, limiter: anyio.CapacityLimiter) -> Call:
    apply = _contained(handler.apply)

    def in_thread(payload: Any, delivery: Any, **dependencies: Any) -> Any:
        if (slot := current_slot.get()) is not None:
            slot.thread = threading.get_ident()
        return _leased(apply, payload, delivery, **dependencies)

    async def call(payload: Any, delivery: Any, **dependencies: Any) -> Any:
        # A thread can't be stopped, so it is waited for. A message must not run twice at a time.
        result = await anyio.to_thread.run_sync(
            functools.partial(in_thread, payload, delivery, **dependencies), limiter=limiter
        )
        if isinstance(result, _Raised):
            try:
                raise result.error
            finally:
                del result  # otherwise this frame would be in a cycle with the traceback of the error
        # A decorator may wrap an async function in a plain one. Then the returned awaitable is
        # awaited here.
        return await result if inspect.isawaitable(result) else result

    return call


def leased(call: Call) -> Call:
    """Return the call of a handler that begins after waits, with a check of the leases."""
    return functools.partial(_leased, call)


def _leased(call: Callable[..., Any], payload: Any, delivery: Message | Batch, **dependencies: Any) -> Any:
    lease_time(delivery.messages)
    return call(payload, delivery, **dependencies)


class _Raised:
    """An exception such as `SystemExit`, on its way from a thread. asyncio can't hand it to a task."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _contained(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with exceptions such as `SystemExit` as its result. A `KeyboardInterrupt` that would end the
    program where the result is raised becomes `CodeExited`, since a thread gets no Ctrl-C.
    """

    def contained(*args: Any, **kwargs: Any) -> Any:
        try:
            return apply(*args, **kwargs)
        except Exception:
            raise
        except BaseException as error:
            if interrupts(error):
                raise CodeExited(error) from error
            return _Raised(error)

    return contained


def _outcomes(call: Callable[..., Awaitable[Any]]) -> Call:
    """Return the call of a batch that applies returned outcomes. A list has one for each message, a
    single outcome applies to all."""

    async def wrapped(payload: Any, batch: Batch, **dependencies: Any) -> Any:
        result = await call(payload, batch, **dependencies)
        if isinstance(result, list):
            batch.set_outcomes(result)
        elif isinstance(result, (Retry, Reject)):
            batch.set_outcomes([result] * len(batch))
        elif (error := misreturned(result)) is not None:
            raise error
        return result

    return wrapped


def check_process(handler: Handler) -> None:
    """Check whether a handler can run in a process, as far as is known at its declaration. Raises
    `ConfigurationError`."""
    name = getattr(handler.function, "__qualname__", None)
    if not inspect.isfunction(handler.function) or name is None or "<" in name:
        raise ConfigurationError(
            f"The handler {handler.name!r} can't run in a separate process, because the process has to import it. Make it a"
            " function at the top of a module, not a lambda, a nested function or an object."
        )
    if handler.dependencies:
        raise ConfigurationError(
            f"The handler {handler.name!r} takes the dependencies {', '.join(handler.dependencies)}, which can't leave this process."
            " Make them in the handler, or use runner='thread'."
        )


def place_of(handler: Handler) -> Place:
    """Return the location where a process finds the handler. Raises `ConfigurationError` when it would
    not find this function there."""
    check_process(handler)
    function = handler.function
    place = Place(function.__module__, function.__qualname__)
    main = sys.modules["__main__"]
    if place.module == "__main__" and getattr(main, "__file__", None) is None:
        found = None
    else:
        try:
            found = place.find()
        except (ImportError, AttributeError):
            found = None
    if found is not function:
        raise ConfigurationError(
            f"The handler {handler.name!r} can't run in a separate process, because {place.name!r} of {place.module!r} is not"
            " this function. Write @app.consumer above all other decorators, in a module."
        )
    return place
