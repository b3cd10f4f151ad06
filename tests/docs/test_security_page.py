"""docs/security.md names the attacks that tests/security/ has."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
OF_THE_CONTRACT = {"test_dependencies.py"}
"""Tests that are no attacks."""


def test_every_test_that_the_page_names_exists() -> None:
    for name in re.findall(r"`((?:tests/\w+/)?test_\w+\.py)`", PAGE):
        assert (ROOT / name if "/" in name else ROOT / "tests" / "security" / name).exists(), name


def test_every_attack_is_on_the_page() -> None:
    files = {file.name for file in (ROOT / "tests" / "security").glob("test_*.py")}
    assert {name for name in files if name not in PAGE} == OF_THE_CONTRACT
