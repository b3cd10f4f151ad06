"""Docstrings as reStructuredText: code that is indented, as in Markdown, becomes blocks of code."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_SECTION = re.compile(r"\s*(?:Args|Attributes|Raises|Returns|Yields|Note|Example)s?:")


def setup(app: Sphinx) -> dict[str, Any]:
    """Set up the extension."""
    app.connect("autodoc-process-docstring", _process, priority=100)  # before napoleon, which is at 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = with_code_blocks(lines)


def with_code_blocks(lines: list[str]) -> list[str]:
    """Put the directive of code before each paragraph that is indented by four spaces and follows an empty line.

    The descriptions of arguments, which follow a heading such as `Args:`, are indented, too, and stay.
    """
    found: list[str] = []
    inside, in_section = False, False
    for number, line in enumerate(lines):
        indented = line.startswith("    ")
        if line and not line.startswith(" "):
            inside, in_section = False, bool(_SECTION.match(line))
        if indented and not inside and not in_section and number and not lines[number - 1].strip():
            found += [".. code-block::", ""]
            inside = True
        found.append(line)
    return found
