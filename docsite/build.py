"""Builds the site: the source tree, HTML of it, and the texts for language models."""

from __future__ import annotations

import shutil
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from docsite import llms, pages, python_api
from docsite.pages import Entry
from docsite.reference import GENERATED

FURTHER = [
    *(Entry(one.title, page, f"{one.description}.") for page, one in GENERATED.items()),
    Entry("The Python API", "reference/python/index.md", "all public names, from their docstrings."),
]
"""The generated pages in the table of contents."""


def build(target: Path) -> bool:
    """Build the site from scratch.

    Args:
        target: the folder to build into. Its folders `source` and `html` are replaced.

    Returns:
        Whether it was built without a warning, such as a link to what does not exist, or a page in no table of contents.
    """
    source, html = target / "source", target / "html"
    for folder in (source, html):
        shutil.rmtree(folder, ignore_errors=True)
    generated = {name: one.page() for name, one in GENERATED.items()} | dict(python_api.pages())
    pages.write(source, generated, FURTHER)
    options = ["--fail-on-warning", "--quiet", "--fresh-env", "--conf-dir", str(Path(__file__).parent)]
    failed = sphinx([*options, "--doctree-dir", str(target / "doctrees"), "-b", "html", str(source), str(html)])
    llms.write(source, html)
    return failed == 0
