"""Markdown for generated pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`+[^`]*`+)")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Cells are Markdown, and may have several lines."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(_cell, cells))} |\n" for cells in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str, language: str = "text") -> str:
    """Return a block of code."""
    return f"```{language}\n{text.rstrip()}\n```\n"


def plain(text: str) -> str:
    """Escape what would be Markdown or HTML in plain text, except for code in backticks."""
    parts = _CODE.split(text)
    return "".join(part if index % 2 else re.sub(r"([<*])", r"\\\1", part) for index, part in enumerate(parts))


def from_folder(text: str, folder: str = "../") -> str:
    """Make the links of a text that was written for docs/ start from a page in a folder of it."""
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({folder}", text)
