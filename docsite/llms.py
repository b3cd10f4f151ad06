"""`llms.txt` and `llms-full.txt`, after https://llmstxt.org: the site for language models.

The first lists all pages, with links to their Markdown, which is published beside the HTML. The second has their text.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from docsite import python_api
from docsite.pages import Entry, contents

_HEAD = re.compile(r"\A# (?P<title>.+)\n+(?P<summary>.+)\n")


def write(source: Path, html: Path) -> None:
    """Write both files, and the Markdown of all pages.

    Args:
        source: the source tree of the site.
        html: the folder of the built site.
    """
    for page in source.rglob("*.md"):
        shutil.copyfile(page, _made(html / page.relative_to(source)))
    for module in python_api.MODULES:
        _made(html / _markdown(module)).write_text(python_api.text(module), encoding="utf-8")
    index = (source / "index.md").read_text(encoding="utf-8")
    sections = {title: list(_entries(entries)) for title, entries in contents(index).items()}
    (html / "llms.txt").write_text(_list(index, sections), encoding="utf-8")
    pages = (html / entry.page for entries in sections.values() for entry in entries)
    texts = "\n\n".join(page.read_text(encoding="utf-8").strip() for page in pages)
    (html / "llms-full.txt").write_text(f"{_head(index)}\n{texts}\n", encoding="utf-8")


def _entries(entries: list[Entry]) -> Iterator[Entry]:
    """Yield the entries of a section, with the modules of the Python API instead of their index."""
    for entry in entries:
        if entry.page.endswith("python/index.md"):
            yield from (Entry(f"Python: {one.name}", _markdown(one), f"{one.about}.") for one in python_api.MODULES)
        else:
            yield entry


def _list(index: str, sections: Mapping[str, list[Entry]]) -> str:
    parts = [_head(index)]
    for title, entries in sections.items():
        lines = (f"- [{one.title}]({one.page}): {one.about}" for one in entries)
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _head(index: str) -> str:
    found = _HEAD.match(index)
    assert found is not None, "docs/index.md begins with a heading and a sentence"
    return f"# {found['title']}\n\n> {found['summary']}\n"


def _markdown(module: python_api.Module) -> str:
    return module.page.replace(".rst", ".md")


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
