"""The table of `docs/capture.md` that says what each schema change does in each mode."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[4] / "docs" / "capture.md"

HEAD = "| operation | mode `rows` | mode `changes` |"

OUTCOMES = CHANGES, RESYNCED, NOTHING, NOT_CAPTURED, FAILURES, REFUSED = (
    "as changes",
    "resynced",
    "nothing changes",
    "not captured",
    "failures",
    "refused by the server",
)

_SAYS = re.compile(r"(noted|stops): “([^”]+)”")


class Promise(NamedTuple):
    """A cell of the table.

    Attributes:
        outcome: One of `OUTCOMES`. None if the source only reports the change.
        state: `running` with a note, or `stopped`. None if the source reports nothing.
        words: A part of the source's reason.
    """

    outcome: str | None
    state: str | None
    words: str | None


class Row(NamedTuple):
    """A row of the table."""

    operation: str
    promises: dict[str, Promise]


def rows() -> Iterator[Row]:
    """Return the rows of the table."""
    lines = PAGE.read_text().split(HEAD)[1].splitlines()[2:]
    for line in lines:
        if not line.startswith("|"):
            return
        operation, in_rows, in_changes = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        yield Row(operation, {"rows": promise(in_rows), "changes": promise(in_changes)})


def promise(cell: str) -> Promise:
    """Read a cell: an outcome, or a note, or both with a comma between them."""
    said = _SAYS.search(cell)
    outcome = (cell[: said.start()] if said else cell).rstrip(", ") or None
    if outcome is not None and outcome not in OUTCOMES:
        raise ValueError(f"{cell!r} is no outcome. There are {', '.join(OUTCOMES)}, noted: “…” and stops: “…”.")
    if said is None:
        return Promise(outcome, None, None)
    return Promise(outcome, "running" if said[1] == "noted" else "stopped", said[2])
