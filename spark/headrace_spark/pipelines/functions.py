"""Finds a user's function by name: `module:function`, or `path/to/file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.model.errors import ConfigurationError, HeadraceError, InvalidInput
from headrace.runtime.user_code import import_problem


class NoFunction(HeadraceError, LookupError):
    """The file, the module, or the function in it does not exist."""

    exit_code = 66  # EX_NOINPUT


def load_function(target: str) -> Callable[..., Any]:
    """Return the function that `target` names. The working directory is searched first.

    Raises:
        InvalidInput: `target` has the wrong form.
        NoFunction: the module, or the function in it, does not exist.
        ConfigurationError: the named object can't be called, or its module raises.
    """
    place, colon, names = target.rpartition(":")
    if not (colon and place and names):
        raise InvalidInput(f"{target!r} does not name a function. Write module:function, or file.py:function.")
    found: object = _module(place)
    for name in names.split("."):
        if not hasattr(found, name):
            raise NoFunction(f"The module {place!r} has no function {names!r}.")
        found = getattr(found, name)
    if not callable(found):
        raise ConfigurationError(f"{target!r} is of type {type(found).__name__}, and must be a function.")
    return found


def pickle_by_value(function: Callable[..., Any]) -> None:
    """Pickle the function's module by value, so that a server that can't import the module gets it too."""
    from pyspark.cloudpickle import register_pickle_by_value

    module = sys.modules.get(getattr(function, "__module__", ""))
    if module is not None and module.__name__ != "__main__":  # `__main__` is always pickled by value
        register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _module(place: str) -> ModuleType:
    path = Path(place)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise NoFunction(f"The file {place!r} does not exist in {Path.cwd()}.")
    directory, name = (path.resolve().parent, path.stem) if is_file else (Path.cwd(), place)
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        module = importlib.import_module(name)
    except HeadraceError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise NoFunction(f"The module {name!r} does not exist in {directory}.") from error
        raise ConfigurationError(import_problem(name, error)) from error
    if is_file and Path(module.__file__ or "").resolve() != path.resolve():
        raise NoFunction(
            f"The file {place!r} can't be imported, since another module is named {name!r}. Rename the file."
        )
    return module
