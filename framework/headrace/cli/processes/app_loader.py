"""Imports the application to run from `module:attribute` or `path/to/file.py:attribute`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

import headrace
from headrace.app.app import App
from headrace.cli.errors import UnreadableInput, UsageError
from headrace.model.errors import ConfigurationError, HeadraceError
from headrace.runtime.user_code import import_problem

_PACKAGE = Path(headrace.__file__).parent


def load_app(target: str, *, needs_consumers: bool = True) -> App:
    """Import the application that `target` names. The working directory is searched first.

    Args:
        needs_consumers: whether an app without consumers is an error.

    Raises:
        UsageError: `target` has the wrong form.
        UnreadableInput: there is no such module, or no such attribute in it.
        ConfigurationError: it is not an `App`, lacks consumers, or the module raises. In the last case
            its traceback is printed.
    """
    module_name, attribute = _split_target(target)
    app = _find_attribute(_import_module(module_name), attribute)
    if not isinstance(app, App):
        raise ConfigurationError(
            f"{target!r} is {_with_article(type(app).__name__)}, not a headrace.App. Give the attribute that holds the app."
        )
    if needs_consumers and not app.consumers and not app.captures and not app.schedules:
        raise ConfigurationError(
            f"The app {target!r} has no consumers, so there is nothing to run. Decorate a handler with @app.consumer('a-stream')."
        )
    return app


def _split_target(target: str) -> tuple[str, str]:
    module_name, colon, attribute = target.rpartition(":")
    if not (colon and module_name and attribute):
        raise UsageError(
            f"The target {target!r} does not name an app. Write module:attribute, such as service:app or service.py:app."
        )
    return module_name, attribute


def _import_module(name: str) -> ModuleType:
    path = Path(name)
    if path.suffix != ".py":
        return _import_from(name, Path.cwd())
    if not path.is_file():
        raise UnreadableInput(f"The file {name!r} does not exist in {Path.cwd()}.")
    module = _import_from(path.stem, path.resolve().parent)
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise UnreadableInput(
            f"The file {name!r} can't be imported, because another module is named {path.stem!r}. Rename the file."
        )
    return module


def _import_from(name: str, directory: Path) -> ModuleType:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        return importlib.import_module(name)
    except HeadraceError as error:
        if place := _place_of(error):
            error.args = (f"{error} It is declared in {place}.", *error.args[1:])
        raise
    except Exception as error:
        if _is_missing(name, error):
            raise UnreadableInput(
                f"The module {name!r} does not exist in {directory}.{_hint(name, directory)}"
            ) from error
        problem = import_problem(name, error)
        _print_traceback(error)
        raise ConfigurationError(f"{problem} Its traceback is above.") from error


def _is_missing(name: str, error: Exception) -> bool:
    """Return whether the module itself is missing, and not a module that it imports."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing is not None and f"{name}.".startswith(f"{missing}.")


def _place_of(error: HeadraceError) -> str:
    """Return the file and the line of the user's code that an error comes from. Empty if none of it has run."""
    lines = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(_PACKAGE) and "importlib" not in frame.filename
    ]
    return lines[-1] if lines else ""


def _print_traceback(error: Exception) -> None:
    """Print the traceback from the user's code on, without the frames of the import."""
    trace = error.__traceback__
    while trace and ("importlib" in (file := trace.tb_frame.f_code.co_filename) or file == __file__):
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace))


def _hint(name: str, directory: Path) -> str:
    path = directory / Path(*name.split("/"))
    if "/" in name and path.with_name(f"{path.name}.py").is_file():
        return f" Did you mean {name}.py?"
    return ""


def _find_attribute(module: ModuleType, names: str) -> object:
    found: object = module
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise UnreadableInput(
                f"The module {module.__name__!r} has no attribute {names!r}. {_list_apps(module)}"
            ) from None
    return found


def _list_apps(module: ModuleType) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f"It has the apps {', '.join(map(repr, apps))}." if apps else "It has no other headrace.App."


def _with_article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"
