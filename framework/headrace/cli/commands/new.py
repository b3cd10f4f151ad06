"""`headrace new NAME`: creates a service from the template."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from headrace.cli.errors import CannotCreate, UsageError

Part = Literal["fastapi"]
"""A part of the template that is left out unless it is asked for. It has a directory of its own below `with/`."""

_PLACEHOLDER = "my-service"
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_TAKEN = frozenset(sys.stdlib_module_names) | frozenset(keyword.kwlist) | {"headrace", "tests"}
_NOT_COPIED = shutil.ignore_patterns("__pycache__", ".venv", ".headrace", ".*_cache", "*.egg-info", "dist", "with")


def new(
    name: Annotated[str, Parameter(help="The service's name, such as web-shop.")],
    /,
    *,
    with_: Annotated[
        Part | None,
        Parameter(name="--with", help="Add a web service: FastAPI, with SQLAlchemy and a test of routes and handlers."),
    ] = None,
) -> None:
    """Create a new service from the template, in a directory of its name.

    It has handlers, settings, tests and a README.
    """
    package = package_name(name)
    target = Path.cwd() / name
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CannotCreate(f"{target} exists and is not an empty directory. Choose another name, or move it.")
    make(target, name, package, with_)
    extras, run = (
        ("fastapi,test", f"uvicorn {package}.web:web") if with_ else ("test", f"headrace run {package}.service:app")
    )
    print(f"Created {name}/. Next:\n\n  cd {name}\n  pip install -e '.[{extras}]'\n  pytest\n  {run}")


def package_name(name: str) -> str:
    """Return the name of the Python package of a service. Raises `UsageError` for an invalid name."""
    package = name.replace("-", "_")
    if not _NAME.fullmatch(name) or len(name) > 60:
        raise UsageError(
            f"The name {name!r} is invalid. Use lower-case letters, digits and single dashes, such as web-shop."
        )
    if package in _TAKEN:
        raise UsageError(f"The name {name!r} is used by Python or by Headrace. Choose another, such as {name}-service.")
    return package


def template() -> Path:
    """Return the template's directory, in the installed package or in the checkout that this code runs from."""
    here = Path(__file__).resolve().parent
    places = (here.parents[0] / "template", here.parents[3] / "app_template")
    for place in places:
        if (place / "pyproject.toml").is_file():
            return place
    raise CannotCreate(f"The template is missing from {places[0]} and {places[1]}. Install Headrace again.")


def make(target: Path, name: str, package: str, part: Part | None = None) -> None:
    """Copy the template to `target`, completely or not at all. Raises `CannotCreate`."""
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
        try:
            copy = draft / name
            shutil.copytree(template(), copy, ignore=_NOT_COPIED)
            if part is not None:
                shutil.copytree(template() / "with" / part, copy, ignore=_NOT_COPIED, dirs_exist_ok=True)
            _rename(copy, name, package)
            copy.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except (OSError, shutil.Error) as error:
        raise CannotCreate(
            f"{target} can't be created: {error}. Change to a directory that you can write to."
        ) from error


def _rename(copy: Path, name: str, package: str) -> None:
    placeholder = _PLACEHOLDER.replace("-", "_")
    (copy / placeholder).rename(copy / package)
    for path in copy.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            text = text.replace(_PLACEHOLDER, name).replace(placeholder, package)
            path.write_text(text.replace(placeholder.upper(), package.upper()), encoding="utf-8")
