"""The help page: the keys and the columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headrace.cli.observe.figures import BAD, FAINT, GOOD, HELD, STRONG, STUCK, WARN

QUERIES = 4
"""Number of queries of one update, independent of the amount of data."""

_KEYS = (
    ("Tab, 1 2 3 4", "go from table to table: streams, consumers, processes, sources"),
    ("↑ ↓ ⏎", "choose a line, and open it: messages, dead letters, what a process tells, how a source is"),
    ("p", "pause the consumer or the source, or resume it"),
    ("s", "seek: move the consumer; asks where to"),
    ("r", "redrive: deliver dead letters again; of a consumer that is open, the one under the cursor, and R all"),
    ("c", "cancel the source's backfills; of a source that is open, the one under the cursor"),
    ("u, b", "of what is open: read it anew, further back"),
    ("/", "show only what has a text in its name"),
    ("o", "sort by the next column"),
    ("q, Esc", "back, and out"),
)
_COLUMNS = (
    ("in/s", "messages published a second: how the last seq moved, over 3 looks; what was rolled back is counted"),
    ("lag", "sequence numbers above the consumer's position: at least as many as there are messages"),
    ("done/s", "messages that the consumer is done with a second, what its filter passes over included"),
    ("flight", "leased by a worker, and not settled"),
    ("parked", "due later, or behind another one of their key"),
    ("block", "behind a dead letter that blocks their key, until somebody redrives or purges it"),
    ("dead", "dead letters"),
    ("actors", "busy, of those that the processes have that tell of themselves; why so many stands at the right"),
    ("chg/s", "changes of tables captured a second, over 3 looks"),
    ("behind", "WAL between what the captured server has written and what is captured"),
    (
        "WAL held",
        "WAL that the captured server keeps for the source's slot: its disk fills, or the slot is lost, when that grows and grows",
    ),
    ("backfill", "how much of the table is read, and how long the rest will take"),
)
_COLOURS = (
    ("moves", GOOD),
    ("lag that grows, nobody at work, a source that waits", WARN),
    ("dead letters, a full stream, an open breaker, a source stopped or in alarm, gone", BAD),
    ("blocked", STUCK),
    ("paused", HELD),
)


def help_page(interval: float | None) -> RenderableType:
    """Build the help page, which includes the cost of the updates."""
    often = f"A look is {QUERIES} queries, whatever there is"
    if interval is not None:
        often += f": at most {QUERIES / interval:.3g} a second at an interval of {interval:g} s"
    cost = Text(
        f"{often}. They count, and judge no message. A store that answers slowly is asked less often: each rest is at least 4 times as long"
        " as the look before it took. A stream or a consumer that is open is read once, and then when you ask for it. Processes tell of"
        " themselves every 3 s.",
        FAINT,
    )
    colours = Text("  ").join(Text(says, style) for says, style in _COLOURS)
    parts = (("Keys", _two(_KEYS)), ("Columns", _two(_COLUMNS)), ("Colours", colours), ("Cost", cost))
    return Group(*(Group(Text(heading, STRONG), Padding(content, (0, 0, 1, 2))) for heading, content in parts))


def _two(lines: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, says in lines:
        grid.add_row(Text(name, GOOD, no_wrap=True), says)
    return grid
