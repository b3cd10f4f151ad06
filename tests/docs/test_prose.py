"""The documentation speaks to its reader: of programs as things, to people as "you", in whole sentences."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")


def running_text(page: Path) -> str:
    """Return a page without its code, tables, pictures and comments."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = (line for line in text.splitlines() if not line.lstrip().startswith(("|", "![", "[!")))
    return re.sub(r"`[^`]*`", "X", "\n".join(lines))


def per_thousand_words(pattern: str) -> float:
    text = "\n".join(running_text(page) for page in PAGES)
    return 1000 * len(re.findall(pattern, text, re.IGNORECASE)) / len(WORD.findall(text))


def test_programs_and_rows_are_things() -> None:
    assert per_thousand_words(r"\b(who|whom|whoever|nobody|somebody|he|him|his|himself)\b") <= 0.5


def test_the_reader_is_spoken_to() -> None:
    assert per_thousand_words(r"\b(you|your|yours)\b") >= 8


def test_a_sentence_has_one_idea() -> None:
    assert per_thousand_words(";") <= 2
