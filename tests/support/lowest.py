"""The lowest versions of the dependencies that pyproject.toml allows, as requirements for pip.

`make test-lowest` installs them and runs the tests on them. It proves that each lower bound is a version
that works. The dependencies of the dependencies are not pinned.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

from tests.versions.python import requirements

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def lowest(texts: Iterable[str]) -> list[str]:
    """Return a pin to the lowest allowed version of each requirement, in the order of names.

    Raises:
        ValueError: a requirement has no lower bound, or two bounds.
    """
    pins: dict[str, Requirement] = {}
    for requirement in map(Requirement, texts):
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


def main() -> None:
    """Print the pins of the project, its extras and its tests."""
    print("\n".join(lowest(requirements(tomllib.loads(PROJECT.read_text(encoding="utf-8"))))))


if __name__ == "__main__":
    main()
