"""`headrace new NAME`: creates a service from the template."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headrace.cli.problems import CantCreate, UsageProblem

_PLACEHOLDER = "my-service"
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_TAKEN = frozenset(sys.stdlib_module_names) | frozenset(keyword.kwlist) | {"headrace", "tests"}
_NOT_COPIED = shutil.ignore_patterns("__pycache__", ".venv", ".headrace", ".*_cache", "*.egg-info", "dist")


def new(name: Annotated[str, Parameter(help="The service's name, such as web-shop.")], /) -> None:
    """Create a new service in a directory of its name: handlers, settings, tests and a README."""
    package = package_name(name)
    target = Path.cwd() / name
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CantCreate(f"{target} exists and is not an empty directory: choose another name, or move it away.")
    make(target, name, package)
    print(
        f"Made {name}/. Next:\n\n  cd {name}\n  pip install -e '.[test]'\n  pytest\n  headrace run {package}.service:app"
    )


def package_name(name: str) -> str:
    """The Python package for a service of that name. Raises `UsageProblem` for an invalid name."""
    package = name.replace("-", "_")
    if not _NAME.fullmatch(name) or len(name) > 60:
        raise UsageProblem(
            f"The name {name!r} can't be used: take lower-case letters, digits and single dashes, such as web-shop."
        )
    if package in _TAKEN:
        raise UsageProblem(
            f"The name {name!r} is taken by Python or by Headrace: choose another, such as {name}-service."
        )
    return package


def template() -> Path:
    """The template's directory, in the installed package or in the checkout that this code runs from."""
    here = Path(__file__).resolve().parent
    places = (here.parents[0] / "template", here.parents[3] / "app_template")
    for place in places:
        if (place / "pyproject.toml").is_file():
            return place
    raise CantCreate(f"The template is in neither {places[0]} nor {places[1]}: install Headrace again.")


def make(target: Path, name: str, package: str) -> None:
    """Copy the template to `target`, completely or not at all. Raises `CantCreate`."""
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
        try:
            copy = aside / name
            shutil.copytree(template(), copy, ignore=_NOT_COPIED)
            _rename(copy, name, package)
            copy.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except (OSError, shutil.Error) as error:
        raise CantCreate(f"{target} can't be made ({error}): choose a directory that can be written.") from error


def _rename(copy: Path, name: str, package: str) -> None:
    placeholder = _PLACEHOLDER.replace("-", "_")
    (copy / placeholder).rename(copy / package)
    for path in copy.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            text = text.replace(_PLACEHOLDER, name).replace(placeholder, package)
            path.write_text(text.replace(placeholder.upper(), package.upper()), encoding="utf-8")
