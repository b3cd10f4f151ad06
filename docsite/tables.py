"""The tables of settings in `docs/`, which the descriptions of settings make: `make tables` writes them."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.model.push import Push
from headrace.model.settings import older_names_table, table
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.webhook import WebhookSpec

DOCS = Path(__file__).parents[1] / "docs"

TABLES = [
    ("streams.md", table(StreamSpec)),
    ("http.md", table(ConsumerSpec)),
    ("http.md", older_names_table(StreamSpec)),
    ("push.md", table(Push)),
    ("webhooks.md", table(WebhookSpec)),
    ("capture.md", table(PostgresSpec)),
]
"""The pages, and the table that each has."""


def with_table(page: str, wanted: str) -> str:
    """Return a page with a table in place of the older one, which has the same heading and some of its rows. Raises
    `ValueError` if there is none.
    """
    head, _, *rows = wanted.splitlines()
    names = {row.split("|")[1] for row in rows}
    for found in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        old_head, _, *old_rows = found.splitlines()
        if old_head == head and names & {row.split("|")[1] for row in old_rows}:
            return page.replace(found, wanted)
    raise ValueError(f"The page has no table with the heading {head}")


if __name__ == "__main__":
    for document, wanted in TABLES:
        path = DOCS / document
        path.write_text(with_table(path.read_text(encoding="utf-8"), wanted), encoding="utf-8")
