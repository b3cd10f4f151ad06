"""The map of the code in docs/architecture.md is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "framework" / "headrace", ROOT / "spark" / "headrace_spark")
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILES = re.compile(r"`([\w/]+\.(?:py|sql))`")
FOLDERS = re.compile(r"`([\w/]+/)`")


def exists(path: str) -> bool:
    return any((folder / path).exists() for folder in (ROOT, *PACKAGES))


def rooms() -> list[str]:
    """All packages, relative to their top package."""
    return sorted(
        f"{file.parent.relative_to(package)}/"
        for package in PACKAGES
        for file in package.rglob("__init__.py")
        if file.parent != package
    )


@pytest.mark.parametrize("path", sorted({*FILES.findall(PAGE), *FOLDERS.findall(PAGE)}))
def test_every_path_that_the_map_names_exists(path: str) -> None:
    assert exists(path), f"docs/architecture.md names {path}, which does not exist"


@pytest.mark.parametrize("room", rooms())
def test_every_room_is_on_the_map(room: str) -> None:
    assert room in FOLDERS.findall(PAGE), f"docs/architecture.md does not name {room}"


def test_no_room_is_crowded() -> None:
    crowded = {
        str(folder.relative_to(ROOT)): count
        for package in PACKAGES
        for folder in (package, *(file.parent for file in package.rglob("__init__.py")))
        if (count := len(list(folder.glob("*.py")))) > 18
    }
    assert crowded == {}
