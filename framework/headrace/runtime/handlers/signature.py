"""Reads the signature of a user's function: its name, whether it is async, and its resolved annotations."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from headrace.model.errors import ConfigurationError


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, also inside a `functools.partial`, or of the class of a callable
    object."""
    function = _innermost(function)
    return getattr(function, "__name__", type(function).__name__)


def name_of_type(hint: Any) -> str:
    """Return the name of a type as in source code, without its module."""
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        return hint.__name__
    return str(hint).replace("typing.", "")


def return_annotation(function: Callable[..., Any]) -> Any:
    """Return the resolved annotation of what a function returns, or `Any` if it has none that can be resolved."""
    returned = inspect.signature(function).return_annotation
    if returned is inspect.Signature.empty:
        return Any
    alone = types.SimpleNamespace(__annotations__={"return": returned})
    try:
        return typing.get_type_hints(alone, _namespace(function))["return"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return Any


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it creates a coroutine. Supports objects with an async `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def annotated(function: Callable[..., Any], subject: str) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Yield the parameters with their resolved annotations, or with `Any` for those without one.

    It skips *args and **kwargs, and parameters that a `functools.partial` has passed by name. The
    return annotation need not be resolvable.

    Args:
        subject: the description of the function in errors, such as "The handler 'ship'".

    Raises:
        ConfigurationError: an annotation refers to a name that doesn't exist.
    """
    namespace = _namespace(function)
    bound = function.keywords if isinstance(function, functools.partial) else {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name in bound:
            continue
        yield parameter, _resolved(parameter, namespace, subject)


def _resolved(parameter: inspect.Parameter, namespace: dict[str, Any], subject: str) -> Any:
    if parameter.annotation is parameter.empty:
        return Any
    alone = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(alone, namespace, include_extras=True)[parameter.name]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{subject} has an annotation that can't be resolved: {error} (of {parameter.name!r}). Its names must be defined when this"
            " is declared: at the top of the module, and not only under TYPE_CHECKING."
        ) from error


def _namespace(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals in which its annotations are evaluated, beneath any wrappers."""
    function = _innermost(function)
    target = function if inspect.isroutine(function) else function.__call__  # type: ignore[operator]
    return getattr(inspect.unwrap(target), "__globals__", {})


def _innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function
