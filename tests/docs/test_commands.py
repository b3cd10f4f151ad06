"""Every command of `headrace` that the documentation shows is one that the command line accepts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.tree import build
from tests.docs.tutorial import blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown(page: Path) -> Iterator[list[str]]:
    """Yield the words of each `headrace` command in the `sh` blocks of a page."""
    for block in blocks(page):
        if block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                command = line.partition(" | ")[2] if line.startswith("echo ") else line.partition(" && ")[0]
                if command.startswith("headrace "):
                    yield shlex.split(command, comments=True)[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_commands_are_accepted(page: Path) -> None:
    for words in shown(page):
        if "--help" not in words:
            build(words[0]).parse_args([word for word in words if word != "…"], exit_on_error=False, print_error=False)
