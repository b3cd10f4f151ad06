"""Imports the application to run from `module:attribute` or `path/to/file.py:attribute`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from headrace.app.app import App
from headrace.cli.problems import NoInput, UsageProblem
from headrace.model.errors import ConfigurationError, HeadraceError


def load(target: str) -> App:
    """Import the application that `target` names. The working directory is searched first.

    Raises:
        UsageProblem: `target` has the wrong form.
        NoInput: there is no such module, or no such attribute in it.
        ConfigurationError: it is not an `App`, has no consumers, or the module raises. In the last case
            its traceback is printed.
    """
    module_name, attribute = _parts(target)
    app = _attribute(_module(module_name), attribute)
    if not isinstance(app, App):
        raise ConfigurationError(
            f"{target!r} is {_article(type(app).__name__)}, not a headrace.App: name the attribute that holds the app."
        )
    if not app.consumers and not app.captures:
        raise ConfigurationError(
            f"The app {target!r} has no consumers, so there is nothing to run: decorate a handler with @app.consumer('a-stream')."
        )
    return app


def _parts(target: str) -> tuple[str, str]:
    module_name, colon, attribute = target.rpartition(":")
    if not (colon and module_name and attribute):
        raise UsageProblem(
            f"The target {target!r} does not name an app: write module:attribute, such as service:app, or service.py:app."
        )
    return module_name, attribute


def _module(name: str) -> ModuleType:
    path = Path(name)
    if path.suffix != ".py":
        return _imported(name, Path.cwd())
    if not path.is_file():
        raise NoInput(f"There is no file {name!r} in {Path.cwd()}.")
    module = _imported(path.stem, path.resolve().parent)
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise NoInput(
            f"The file {name!r} can't be imported, since there is another module {path.stem!r}: rename the file."
        )
    return module


def _imported(name: str, directory: Path) -> ModuleType:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        return importlib.import_module(name)
    except HeadraceError:
        raise
    except Exception as error:
        if _is_about(name, error):
            raise NoInput(f"There is no module {name!r} in {directory}{_hint(name, directory)}.") from error
        _print_traceback(error)
        raise ConfigurationError(
            f"The module {name!r} can't be imported: {type(error).__name__}: {error}. Its traceback is above."
        ) from error


def _is_about(name: str, error: Exception) -> bool:
    """Whether the module itself is missing, and not a module that it imports."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return missing is not None and f"{name}.".startswith(f"{missing}.")


def _print_traceback(error: Exception) -> None:
    """Print the traceback from the user's code on, without the frames of the import."""
    trace = error.__traceback__
    while trace and ("importlib" in (file := trace.tb_frame.f_code.co_filename) or file == __file__):
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace))


def _hint(name: str, directory: Path) -> str:
    path = directory / Path(*name.split("/"))
    if "/" in name and path.with_name(f"{path.name}.py").is_file():
        return f"; did you mean {name}.py"
    return ""


def _attribute(module: ModuleType, names: str) -> object:
    found: object = module
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise NoInput(f"The module {module.__name__!r} has no {names!r}{_others(module)}.") from None
    return found


def _others(module: ModuleType) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f"; it has {', '.join(map(repr, apps))}" if apps else ", and no other headrace.App either"


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"
