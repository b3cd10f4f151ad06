"""The user's function, made callable with a message: what it takes, and how its payload is decoded."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from headrace.model.errors import ConfigurationError
from headrace.runtime.message import Message

Decode = Callable[[str], Any]
Call = Callable[[Any, Message], Awaitable[Any]]


class Handler:
    """A handler, ready to run.

    Attributes:
        name: the function's name.
        decode: from JSON text to the annotated type; raises `msgspec.MsgspecError` when it doesn't fit.
        call: run it with (payload, message).
        is_async: whether it runs on the event loop, or in a thread.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise ConfigurationError(f"A handler is a function, not {type(function).__name__}.")
        self.function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        )
        payload, wants_payload, wants_message = _signature(function, self.name)
        self.decode: Decode = _decoder(payload, self.name)
        self._order = (wants_payload, wants_message)
        self.limiter: anyio.CapacityLimiter | None = None
        self.call: Call = self._async_call() if self.is_async else self._thread_call()

    def _async_call(self) -> Call:
        function = self.function
        match self._order:
            case ("payload", "message"):
                return function
            case ("message", "payload"):
                return lambda payload, message: function(message, payload)
            case ("payload", None):
                return lambda payload, _message: function(payload)
            case (None, "message"):
                return lambda _payload, message: function(message)
            case _:
                return lambda _payload, _message: function()

    def _thread_call(self) -> Call:
        ordered = self._async_call()

        async def in_thread(payload: Any, message: Message) -> Any:
            # A thread can't be stopped, so it is waited for: a message must not run twice at a time.
            result = await anyio.to_thread.run_sync(functools.partial(ordered, payload, message), limiter=self.limiter)
            # A plain function around an async one, as a decorator may make it, is done when what it returned is.
            return await result if inspect.isawaitable(result) else result

        return in_thread


def _signature(function: Callable[..., Any], name: str) -> tuple[Any, str | None, str | None]:
    """The payload's type, and what the function's first and second parameter take: `payload`, `message` or None."""
    target = function if inspect.isroutine(function) else function.__call__  # type: ignore[operator]
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigurationError(f"The handler {name!r} has an annotation that can't be resolved: {error}.") from error
    roles: list[str] = []
    payload: Any = Any
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
                raise ConfigurationError(
                    f"The handler {name!r} has a keyword-only parameter {parameter.name!r}: give it a default."
                )
            continue
        annotation = hints.get(parameter.name, Any)
        role = "message" if _is_message(annotation) else "payload"
        if role in roles:
            if parameter.default is not parameter.empty:
                continue
            raise ConfigurationError(
                f"The handler {name!r} takes more than a payload and a message ({parameter.name!r} is one too many):"
                " write `async def handler(order: Order, message: Message)`."
            )
        roles.append(role)
        if role == "payload":
            payload = annotation
    if roles == ["message", "payload"]:
        return payload, "message", "payload"
    return payload, "payload" if "payload" in roles else None, "message" if "message" in roles else None


def _is_message(annotation: Any) -> bool:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return any(_is_message(part) for part in typing.get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, Message)


def _decoder(payload: Any, name: str) -> Decode:
    try:
        decoder = msgspec.json.Decoder(payload)
        custom = _custom_type(msgspec.inspect.type_info(payload), set())
    except (TypeError, NameError) as error:
        raise ConfigurationError(
            f"The handler {name!r} takes {payload!r}, which can't be decoded from JSON: {error}."
        ) from error
    if custom is not None:
        raise ConfigurationError(
            f"The handler {name!r} takes {custom.__name__!r}, which can't be decoded from JSON: make it a msgspec.Struct,"
            " a dataclass, a TypedDict, or a built-in type."
        )
    return decoder.decode


def _custom_type(info: Any, seen: set[int]) -> type | None:
    """A class somewhere inside that msgspec has no way to decode."""
    if isinstance(info, msgspec.inspect.CustomType):
        return info.cls
    if isinstance(info, (list, tuple)):
        return next((found for part in info if (found := _custom_type(part, seen))), None)
    if not isinstance(info, msgspec.Struct) or id(info) in seen:
        return None
    seen.add(id(info))
    return next(
        (found for field in info.__struct_fields__ if (found := _custom_type(getattr(info, field), seen))), None
    )
