"""What the signature of a user's function says: its name, whether it is async, and its annotations, resolved."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from headrace.model.errors import ConfigurationError


def name_of(function: Callable[..., Any]) -> str:
    """What to call it: a function's name, also inside a `functools.partial`, or the class of an object that can be called."""
    function = _innermost(function)
    return getattr(function, "__name__", type(function).__name__)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine; also of an object with an async `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def annotated(function: Callable[..., Any], who: str) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Its parameters with their annotations, resolved; `Any` where there is none.

    Left out are *args and **kwargs, and what a `functools.partial` has given by name. What the function returns need not be resolved.

    Args:
        who: what the function is called in an error, such as "The handler 'ship'".

    Raises:
        ConfigurationError: an annotation names what is not there.
    """
    namespace = _namespace(function)
    bound = function.keywords if isinstance(function, functools.partial) else {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name in bound:
            continue
        yield parameter, _resolved(parameter, namespace, who)


def _resolved(parameter: inspect.Parameter, namespace: dict[str, Any], who: str) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    alone = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(alone, namespace, include_extras=True)[parameter.name]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{who} has an annotation that can't be resolved: {error} (of {parameter.name!r}). What it names must be there when this"
            " is declared: at the top of the module, and not only under TYPE_CHECKING."
        ) from error


def _namespace(function: Callable[..., Any]) -> dict[str, Any]:
    """The globals that its annotations are written in, whatever is wrapped around it."""
    function = _innermost(function)
    target = function if inspect.isroutine(function) else function.__call__  # type: ignore[operator]
    return getattr(inspect.unwrap(target), "__globals__", {})


def _innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function
