"""The lowest versions of the dependencies that pyproject.toml allows, as requirements for pip.

`make test-lowest` installs them and runs the tests on them. It proves that each lower bound is a version
that works. The dependencies of the dependencies are not pinned.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
PACKAGE = "headrace"


def lowest(project: Mapping[str, Any], extras: Iterable[str]) -> list[str]:
    """Return a pin to the lowest allowed version of each direct dependency, in the order of names.

    Args:
        project: the table `[project]` of pyproject.toml.
        extras: the extras whose dependencies are included. The extras that they name follow.

    Raises:
        ValueError: a dependency has no lower bound, or two bounds.
    """
    pins: dict[str, Requirement] = {}
    for requirement in _requirements(project, extras):
        bounds = [one.version for one in requirement.specifier if one.operator in (">=", "==", "~=")]
        if len(bounds) != 1:
            raise ValueError(f"{requirement} needs exactly one lower bound, such as {requirement.name}>=1.0.")
        pin = Requirement(str(requirement))
        pin.specifier = type(pin.specifier)(f"=={bounds[0]}")
        other = pins.setdefault(requirement.name, pin)
        if other.specifier != pin.specifier:
            raise ValueError(f"{requirement.name} has two lower bounds, {other.specifier} and {pin.specifier}.")
        other.extras |= pin.extras
    return [str(pins[name]) for name in sorted(pins)]


def _requirements(project: Mapping[str, Any], extras: Iterable[str]) -> Iterator[Requirement]:
    optional = project["optional-dependencies"]
    texts, seen = list(project["dependencies"]), set[str]()
    waiting = list(extras)
    while waiting:
        extra = waiting.pop()
        if extra not in seen:
            seen.add(extra)
            texts += optional[extra]
            waiting += [one for text in optional[extra] if _is_own(text) for one in Requirement(text).extras]
    return (Requirement(text) for text in texts if not _is_own(text))


def _is_own(text: str) -> bool:
    return Requirement(text).name == PACKAGE


def main(arguments: Sequence[str]) -> None:
    """Print the pins, with the dependencies of the extras in the arguments."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    print("\n".join(lowest(project, arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
