"""The columns of messages: those of a stream, those in progress, and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rich.cells import cell_len
from rich.text import Text

from headrace.cli.observe.display.colors import BAD, FAINT, GOOD, STRONG, STUCK, WARN
from headrace.cli.observe.display.columns import Column
from headrace.cli.output.formats import HasData, last_error, one_line_data, one_line_json
from headrace.model.records import DeadLetter, PeekedMessage, StoredMessage
from headrace.model.text.printing import printable

Row = TypeVar("Row", StoredMessage, PeekedMessage, DeadLetter)

PREVIEW_CHARACTERS = 300
"""Maximum number of characters of a message's data in its line."""

_STATES = {"in_flight": ("in flight", GOOD), "parked": ("parked", WARN), "blocked": ("blocked", STUCK), "next": ("next", FAINT)}  # fmt: skip


def data_preview(data: object) -> Text:
    """Return the beginning of a message's data, in one line."""
    return _preview(one_line_json(data))


def message_preview(message: HasData) -> Text:
    """Return the beginning of a message's data, in one line, or what has encoded it."""
    return _preview(one_line_data(message))


def _preview(text: str) -> Text:
    return Text(printable(text[:PREVIEW_CHARACTERS]), FAINT)


def seq_and_key(_: type[Row], *, seq_width: int = 12, key_width: int = 16) -> tuple[Column[Row], Column[Row]]:
    """Return the first two columns of a table of messages.

    Args:
        seq_width: the maximum width of the seq.
        key_width: the minimum width of the key.
    """
    return (
        Column(
            label="seq", width=9, max_width=seq_width, right=True,
            content_width=lambda m: len(str(m.seq)), cell=lambda m, _: str(m.seq),
        ),
        Column(
            label="key", width=key_width, max_width=40,
            content_width=lambda m: cell_len(m.key), cell=lambda m, _: Text(printable(m.key), STRONG),
        ),
    )  # fmt: skip


MESSAGE_COLUMNS: Sequence[Column[StoredMessage]] = (
    *seq_and_key(StoredMessage, seq_width=14),
    Column(label="published", width=12, cell=lambda m, _: f"{m.created_at:%H:%M:%S.%f}"[:12]),
    Column(label="data", width=20, max_width=400, drop_order=1, cell=lambda m, _: message_preview(m)),
)

IN_PROGRESS_COLUMNS: Sequence[Column[PeekedMessage]] = (
    Column(label="state", width=9, cell=lambda m, _: Text(*_STATES[m.state])),
    *seq_and_key(PeekedMessage),
    Column(label="tries", width=5, right=True, cell=lambda m, _: str(m.attempts)),
    Column(label="until", width=8, cell=lambda m, _: "" if m.until is None else f"{m.until:%H:%M:%S}"),
    Column(label="owner", width=8, drop_order=2, cell=lambda m, _: Text((m.owner or "")[:8], FAINT)),
    Column(
        label="error or data",
        width=13,
        max_width=400,
        drop_order=1,
        cell=lambda m, _: Text(printable(last_error(m)), BAD) if m.error else message_preview(m),
    ),
)

DEAD_LETTER_COLUMNS: Sequence[Column[DeadLetter]] = (
    *seq_and_key(DeadLetter, key_width=14),
    Column(label="tries", width=5, right=True, cell=lambda d, _: str(d.attempts)),
    Column(
        label="reason", width=9, max_width=12, cell=lambda d, _: Text(printable(d.reason), STUCK if d.blocks else "")
    ),
    Column(
        label="error", width=20, max_width=400, cell=lambda d, _: Text(printable((d.error or "").split("\n")[0]), BAD)
    ),
)
