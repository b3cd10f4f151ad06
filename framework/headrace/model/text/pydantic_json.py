"""Payloads that are pydantic models. Pydantic decodes and encodes them itself, with their validators, aliases and
serializers. It is imported only if a handler's type or a payload is a model.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any

import msgspec

MAX_ERRORS = 5
"""How many of the errors of a payload are named."""


def encode_model(value: Any) -> Any:
    """Encode a model as JSON. This is msgspec's hook for what it doesn't know.

    Fields are named by their aliases, as they are when a model is decoded.

    Raises:
        TypeError: the value is no model.
        ValueError: the model can't be written as JSON.
    """
    kind = type(value)
    if not is_model(kind):
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        raise TypeError(f"Encoding objects of type {name} is unsupported")
    return msgspec.Raw(value.__pydantic_serializer__.to_json(value, by_alias=True))


def is_model(kind: Any) -> bool:
    """Whether a class is a model of pydantic 2, or one of its dataclasses."""
    return isinstance(kind, type) and "__pydantic_serializer__" in dir(kind)


def has_model(annotation: Any) -> bool:
    """Whether a type is a model, or contains one."""
    return _has_model(annotation, set())


def _has_model(annotation: Any, seen: set[int]) -> bool:
    if id(annotation) in seen:
        return False
    seen.add(id(annotation))
    if is_model(annotation):
        return True
    inside = list(typing.get_args(annotation))
    if dataclasses.is_dataclass(annotation) or hasattr(annotation, "__required_keys__"):  # a TypedDict
        inside += typing.get_type_hints(annotation).values()
    return any(_has_model(one, seen) for one in inside)


def model_decoder(annotation: Any) -> Callable[[str], Any]:
    """A decoder of JSON text into a type with models. It raises `msgspec.ValidationError` if the text doesn't fit.

    Raises:
        TypeError: pydantic can't decode the type, as when it contains a `msgspec.Struct`.
    """
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:
        validate = TypeAdapter(annotation).validate_json
    except PydanticUserError as error:
        raise TypeError(f"pydantic refuses it: {error.message.partition(chr(10))[0].rstrip('.')}") from error

    def decode(text: str) -> Any:
        try:
            return validate(text)
        except ValidationError as error:
            raise msgspec.ValidationError(_sentence(error)) from error

    return decode


def _sentence(error: Any) -> str:
    """The errors of a payload on one line, without its values, which may be secret."""
    found = [
        f"{one['msg']} - at `{'.'.join(('$', *map(str, one['loc'])))}`"
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    more = f"; and {len(found) - MAX_ERRORS} more" if len(found) > MAX_ERRORS else ""
    return "; ".join(found[:MAX_ERRORS]) + more
