"""Transforms: your functions that change a captured message's data before it is published.

    @headrace.transform
    def without_email(message):
        message["record"].pop("email", None)
        return message

A source names it as `module:name`. It runs in the process that captures, for one message after the
other. It gets the data as a dict with `record`, `changes`, `action` and `metadata`. Its return
value is published, which may be any JSON value. None publishes nothing. A number that Python's
float can't hold exactly is passed as a `Decimal`. If it raises, the message is kept beside the stream as a failure,
and the capture continues.

Only a decorated function may be named, so that settings can't call arbitrary functions.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from decimal import Decimal
from threading import Thread
from typing import Any, TypeVar

import anyio
import msgspec

from headrace.model.errors import ConfigurationError, InvalidData
from headrace.model.messages import payloads
from headrace.model.text.error_text import error_text
from headrace.runtime.user_code import interrupts
from headrace.sources.postgres.errors import SourceStopped

Transform = Callable[[dict[str, Any]], Any]
F = TypeVar("F", bound=Callable[..., Any])

NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_MARK = "__headrace_transform__"


def transform(function: F) -> F:
    """Mark a function as a transform, so that sources may name it.

    Args:
        function: takes a message's data, a dict, and returns the data to publish, or None to
            publish nothing. It must be a plain function. A function that waits would hold up the
            capture.

    Returns:
        The function itself.

    Raises:
        ConfigurationError: it is async, a generator, or no function.
    """
    if not inspect.isfunction(function):
        raise ConfigurationError(f"@transform decorates a function, not {function!r:.80}.")
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise ConfigurationError(
            f"The transform {function.__name__!r} must be a plain function, not async and not a generator. It returns the data."
        )
    setattr(function, _MARK, True)
    return function


def load(name: str) -> Transform:
    """Return the transform with a name.

    Args:
        name: `module:name`.

    Raises:
        SourceStopped: it does not exist, can't be imported, or is not decorated with
            `@headrace.transform`.
    """
    module, _, attribute = name.partition(":")
    if not NAME.fullmatch(name):
        raise SourceStopped(f"The transform {name!r:.120} is invalid. Write module:name.")
    try:
        candidate = getattr(importlib.import_module(module), attribute, None)
    except BaseException as error:  # such as SystemExit, which must not end the process
        if interrupts(error):
            raise
        raise SourceStopped(
            f"The transform {name!r} can't be imported ({error_text(error)[0]}). Make the module importable for the process that captures."
        ) from error
    if candidate is None:
        raise SourceStopped(f"The transform {name!r} does not exist. The module {module} has no {attribute}.")
    if not inspect.isfunction(candidate) or getattr(candidate, _MARK, None) is not True:
        raise SourceStopped(f"{name!r} is not a transform. Decorate the function with @headrace.transform.")
    return candidate


async def load_in_thread(name: str, timeout: float) -> Transform:
    """Return the transform with a name. The module is imported in a thread, because an import may
    take long or never end.

    An import that never ends keeps its thread. Later calls wait for the same thread.

    Args:
        timeout: the longest wait in seconds.

    Raises:
        SourceStopped: see `load`. Also if the import takes longer than `timeout`.
    """
    future = _imports.get(name)
    if future is None:
        future = _imports[name] = Future()
        future.set_running_or_notify_cancel()
        Thread(target=_load_into, args=(name, future), name=f"import of {name}", daemon=True).start()
    try:
        with anyio.fail_after(timeout):
            return await asyncio.wrap_future(future)
    except TimeoutError:
        raise SourceStopped(
            f"The transform {name!r} can't be imported, because its import has not ended after {timeout:g} s. Correct the"
            " module, and restart the processes that capture."
        ) from None
    finally:
        if future.done():
            _imports.pop(name, None)


def _load_into(name: str, future: Future[Transform]) -> None:
    try:
        future.set_result(load(name))
    except BaseException as error:
        future.set_exception(error)


def transformed(function: Transform, data: bytes) -> bytes | None:
    """Apply a transform to a message's data. Input and result are JSON text. None means that nothing
    is published.

    Raises:
        BaseException: an exception of the function. `InvalidData` if it returns what is not JSON.
    """
    # In a copy of the context, so that a variable that it sets is there neither for the next change nor for Headrace.
    result = copy_context().run(function, _decoder.decode(data))
    if result is None:
        return None
    if inspect.iscoroutine(result):
        result.close()
        raise InvalidData("The transform returned a coroutine. It must be a plain function that returns the data.")
    try:
        return _encoder.encode(result)
    except Exception as error:
        raise InvalidData(f"The return value of the transform can't be encoded as JSON: {error}.") from error


def check_stored(data: bytes) -> None:
    """Raise `InvalidData` for JSON text with a NUL in a string, which the stream can't hold."""
    if b"\\u0000" in data:
        payloads.encode(msgspec.Raw(data))


def _number(text: str) -> float | Decimal:
    """Return the number as a float if that is exact, otherwise as a `Decimal`."""
    exact = Decimal(text)
    as_float = float(text)
    return as_float if Decimal(repr(as_float)) == exact else exact


_decoder = msgspec.json.Decoder(dict[str, Any], float_hook=_number)
_imports: dict[str, Future[Transform]] = {}
"""Imports that have not ended, by the transform's name."""

_encoder = msgspec.json.Encoder(decimal_format="number")
