"""The pages that quote results.

A number of a page is a figure if a comment with its formula follows it: `196,000<!-- publish.rate -->/s`. A table or a
paragraph is written as a whole if it stands between `<!-- figures: NAME -->` and `<!-- end of figures -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures.formulas import MISSING, Results, runs_of, text_of
from benchmarks.figures.results import ROOT
from benchmarks.figures.tables import PARTS

_FIGURE = re.compile(
    rf"(?:{MISSING}|\d[\d,]*(?:\.\d+)?)(?P<comment><!-- (?P<formula>(?:\d+ [*/+] )?[a-z_]+\.[^>]+?) -->)"
)
_BLOCK = re.compile(
    r"(?P<start><!-- figures: (?P<name>\w+) -->\n)(?:(?!<!-- figures:).)*?(?P<end><!-- end of figures -->)", re.DOTALL
)


def pages() -> Iterator[Path]:
    """Yield the pages of the repository that quote results."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if quoted(page.read_text(encoding="utf-8")):
            yield page


def quoted(page: str) -> set[str]:
    """Return the runs whose results a page quotes."""
    formulas = {run for found in _FIGURE.finditer(page) for run in runs_of(found["formula"])}
    return formulas.union(*(PARTS[found["name"]].runs for found in _BLOCK.finditer(page)))


def filled(page: str, results: Results) -> str:
    """Return a page with the figures of the results.

    Raises:
        ValueError: a result has no such figure.
    """
    known = {run: results[run] for run in sorted(quoted(page) & results.keys())}
    page = _BLOCK.sub(lambda found: f"{found['start']}\n{PARTS[found['name']].write(known)}\n{found['end']}", page)
    return _FIGURE.sub(lambda found: text_of(found["formula"], results) + found["comment"], page)


def without_figures(text: str) -> str:
    """Return a text without the numbers that are figures."""
    return _FIGURE.sub("", text)
