"""The tutorial works by its text alone: a reader who types it sees what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.processes import Commands
from tests.docs.tutorial import Reader, missing

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
STOCK = re.compile(r"hat  \| +(\d+)")


@pytest.mark.process
@pytest.mark.long
def test_the_tutorial_shows_what_happens(server_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADRACE_DATABASE", "HEADRACE_DATA", "HEADRACE_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_TEST_DATABASE", server_dsn)  # its tests need no further server
    monkeypatch.setenv("MYPY_CACHE_DIR", str(ROOT / ".mypy_cache"))
    with Commands(tmp_path) as commands:
        reader = Reader(tmp_path, commands)
        reader.follow(PAGE)
        reader.stop()
    plain, once, more = (int(pieces) for pieces in STOCK.findall("".join(reader.shown)))
    assert plain < 900 == once == more + 100


def test_an_outline_is_found_in_its_order() -> None:
    assert missing("one …\nthree", "0\none two\nthree four\n") is None
    assert missing("three\none", "one\nthree\n") == "one"
    assert missing("hat | 900", "hat | 1900\n") == "hat | 900"
