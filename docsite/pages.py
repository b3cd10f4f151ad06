"""The source tree of the site: the pages of docs/, with links that hold there, and tables of contents.

`docs/index.md` is the table of contents. Each of its sections with a list of links becomes a part of the navigation.
Generated pages are added to its section "Reference".
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = PurePosixPath("docs")
ELSEWHERE = PurePosixPath("project")
"""The folder of the site with those files of the repository outside of docs/ that pages link to."""

_ORPHAN = "---\norphan: true\n---\n\n"
_FENCE = re.compile(r"(^[ ]*```.*?^[ ]*```[ ]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
_SECTION = re.compile(r"^## (?P<title>[^\n]+)\n(?P<body>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<page>[^)#]+)\)(?:: (?P<about>.*))?$", re.MULTILINE)


class Entry(NamedTuple):
    """A page in the table of contents: its title, its path relative to docs/, and what it is about."""

    title: str
    page: str
    about: str


def contents(index: str) -> Mapping[str, list[Entry]]:
    """Return the entries of an index page by the titles of its sections."""
    return {
        section["title"]: [Entry(entry["title"], entry["page"], entry["about"] or "") for entry in _ENTRY.finditer(section["body"])]
        for section in _SECTION.finditer(index)
    }  # fmt: skip


def read_index() -> str:
    """Return the text of docs/index.md."""
    return (ROOT / DOCS / "index.md").read_text(encoding="utf-8")


def write(target: Path, generated: Mapping[str, str], further: list[Entry]) -> None:
    """Write the source tree.

    Args:
        target: an empty folder.
        generated: the texts of generated pages, by their paths relative to docs/.
        further: the entries of generated pages for the section "Reference".
    """
    for page, made in generated.items():
        _write(target / page, made)
    index = with_entries(read_index(), "Reference", further)
    listed = {_resolved(DOCS / "index.md", entry.page) for entries in contents(index).values() for entry in entries}
    waiting: dict[PurePosixPath, str | None] = {DOCS / "index.md": with_tables_of_contents(index)}
    waiting |= {path: None for path in _pages() if path not in waiting}
    written: set[PurePosixPath] = set()
    while waiting:
        path, text = waiting.popitem()
        written.add(path)
        for linked in _copy(path, target, text, orphan=not path.is_relative_to(DOCS) and path not in listed):
            if linked not in written:
                waiting.setdefault(linked, None)


def with_entries(index: str, section: str, entries: list[Entry]) -> str:
    """Return an index page with further entries at the end of a section."""
    heading = f"## {section}\n"
    before, found, after = index.partition(heading)
    body, following, rest = after.partition("\n## ")
    assert found, f"docs/index.md has no section {section!r}"
    lines = "".join(f"- [{one.title}]({one.page}): {one.about}\n" for one in entries)
    return f"{before}{heading}{body.rstrip()}\n{lines}{following}{rest}"


def with_tables_of_contents(index: str) -> str:
    """Return an index page with a hidden table of contents, which Sphinx needs, after each section."""

    def with_toctree(section: re.Match[str]) -> str:
        entries = [
            f"{one.title} <{place(DOCS / 'index.md', one.page).with_suffix('')}>"
            for one in contents(section[0])[section["title"]]
        ]
        listed = "\n".join(entries)
        return f"{section[0].rstrip()}\n\n```{{toctree}}\n:hidden:\n:titlesonly:\n:caption: {section['title']}\n\n{listed}\n```\n\n"

    return _SECTION.sub(with_toctree, index)


def place(page: PurePosixPath, link: str) -> PurePosixPath:
    """Return where the file that a page of the repository links to is in the site. A program becomes a page."""
    path = _resolved(page, link)
    inside = path.relative_to(DOCS) if path.is_relative_to(DOCS) else ELSEWHERE / path
    return inside.with_name(f"{inside.name}.md") if _is_program(inside) else inside


def relinked(page: PurePosixPath, text: str) -> str:
    """Return the text of a page of the repository with links that hold in the site. Code stays as it is."""
    here = place(page, page.name).parent

    def link(found: re.Match[str]) -> str:
        target = os.path.relpath(place(page, found["path"]), here)
        return f"{PurePosixPath(target)}{found['anchor'] or ''}"

    parts = _FENCE.split(text)
    return "".join(part if index % 2 else _LINK.sub(link, part) for index, part in enumerate(parts))


def _copy(path: PurePosixPath, target: Path, text: str | None, *, orphan: bool) -> Iterator[PurePosixPath]:
    """Copy a file of the repository, or write its changed text. Yields the files that it links to.

    An orphan is in no table of contents.
    """
    source, to = ROOT / path, target / place(path, path.name)
    if source.suffix not in (".md", ".py"):
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, to)
        return
    text = source.read_text(encoding="utf-8") if text is None else text
    head = _ORPHAN if orphan else ""
    if _is_program(path):
        _write(to, f"{head}# {path.name}\n\n```python\n{text}```\n")
        return
    _write(to, head + relinked(path, text))
    for part in _FENCE.split(text)[::2]:
        yield from (
            linked for found in _LINK.finditer(part) if (ROOT / (linked := _resolved(path, found["path"]))).is_file()
        )


def _pages() -> Iterator[PurePosixPath]:
    """Yield all pages of docs/."""
    yield from (PurePosixPath(file.relative_to(ROOT)) for file in sorted((ROOT / DOCS).rglob("*.md")))


def _resolved(page: PurePosixPath, link: str) -> PurePosixPath:
    return PurePosixPath(os.path.normpath(page.parent / link))


def _is_program(path: PurePosixPath) -> bool:
    return path.suffix == ".py"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
