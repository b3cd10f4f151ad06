"""Checks of a handler against the types of the streams that it reads and publishes to."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from headrace.app.streams.stream import Stream
from headrace.model.errors import ConfigurationError
from headrace.model.outcomes import Reject, Retry
from headrace.runtime.handlers.handler import Handler
from headrace.runtime.handlers.signature import name_of_type, return_annotation


def check_payload(handler: Handler, stream: Stream[Any], runner: str | None) -> None:
    """Raise `ConfigurationError` if the handler's payload is not of the stream's type."""
    if not accepts(handler.takes, stream.type):
        carried, taken = name_of_type(stream.type), name_of_type(handler.takes)
        wanted, found = (f"list[{carried}]", f"list[{taken}]") if handler.batch else (carried, taken)
        raise ConfigurationError(
            f"The handler {handler.name!r} takes {found}, and the stream {stream.name!r} carries {carried}: annotate its payload as"
            f" {wanted}."
        )
    takes_payload = any(parameter.role == "payload" for parameter in handler.parameters)
    if runner == "process" and takes_payload and handler.takes != stream.type:
        raise ConfigurationError(
            f"The handler {handler.name!r} runs in a separate process, which decodes by its annotation: annotate its payload"
            f" as {name_of_type(stream.type)}."
        )


def check_result(function: Callable[..., Any], name: str, stream: Stream[Any]) -> None:
    """Raise `ConfigurationError` if the annotated result is not what the handler may publish to the stream.

    A result without an annotation, or one that can't be resolved, is not checked.
    """
    returned = return_annotation(function)
    parts = list(_parts(returned))
    wrong = [part for part in parts if not (part in (None, type(None)) or _publishable(part, stream.type))]
    if wrong or parts == [type(None)]:
        carried = name_of_type(stream.type)
        raise ConfigurationError(
            f"The handler {name!r} returns {'None' if parts == [type(None)] else name_of_type(returned)}, and publishes to {stream.name!r}: return tuple[str, {carried}], which"
            f" is a key and the data, tuple[str, {carried}, dict[str, Any]] with headers, a list of these, or None."
        )


def accepts(annotation: Any, carried: Any) -> bool:
    """Whether a parameter with this annotation takes values of the type that a stream carries."""
    if annotation in (Any, object) or carried is Any:
        return True
    taken = list(_parts(annotation))
    return all(any(_takes(one, part) for one in taken) for part in _parts(carried))


def _takes(taken: Any, carried: Any) -> bool:
    if taken in (Any, object) or taken == carried:
        return True
    return _is_class(taken) and _is_class(carried) and not typing.is_typeddict(taken) and issubclass(carried, taken)


def _publishable(part: Any, carried: Any) -> bool:
    origin, inside = typing.get_origin(part), typing.get_args(part)
    if part in (Any, list, tuple, Retry, Reject):
        return True
    if origin is list:
        return all(typing.get_origin(one) is tuple and _publishable(one, carried) for one in _parts(inside[0]))
    return origin is tuple and len(inside) in (2, 3) and inside[0] in (str, Any) and accepts(carried, inside[1])


def _parts(annotation: Any) -> Iterator[Any]:
    """The members of a union, and the type itself otherwise."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        for part in typing.get_args(annotation):
            yield from _parts(part)
    elif typing.get_origin(annotation) is typing.Annotated:
        yield from _parts(typing.get_args(annotation)[0])
    else:
        yield annotation


def _is_class(kind: Any) -> bool:
    return inspect.isclass(kind) and typing.get_origin(kind) is None
