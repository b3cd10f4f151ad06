"""The blocks of code in the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(
    r"(?:^ *<!-- not run: (?P<reason>.+?) -->\n+)?^(?P<indent> *)```(?P<language>[\w{}-]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A block of code.

    Attributes:
        page: its page, relative to the repository.
        language: the word after the backticks.
        text: the code.
        reason: why no test runs it, from a comment `<!-- not run: REASON -->` on the line above. None if there is none.
    """

    page: str
    language: str
    text: str
    reason: str | None


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield Block(str(page.relative_to(ROOT)), found["language"], dedent(found["text"]), found["reason"])
