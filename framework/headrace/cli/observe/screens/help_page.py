"""The help page: the keys and the columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headrace.cli.observe.display.colors import BAD, FAINT, GOOD, HELD, STRONG, STUCK, WARN
from headrace.model.watching.live import ConsumerRow, ProcessRow, SourceRow, StreamRow, figures

QUERIES = 4
"""Number of queries of an update in the mean, independent of the amount of data."""

_KEYS = (
    ("Tab, 1 2 3 4", "go to the next table, or to streams, consumers, processes, sources"),
    ("↑ ↓ ⏎", "select a row, and open it"),
    ("p", "pause the consumer or the source, or resume it"),
    ("s", "seek: move the consumer to a position that you enter"),
    ("r", "redrive all dead letters of the consumer. In an open consumer: r the one under the cursor, R all"),
    ("c", "cancel all backfills of the source. In an open source: the one under the cursor"),
    ("u, b", "in an open row: read it again, show older messages"),
    ("/", "filter rows by a text in their name"),
    ("o", "sort by the next column"),
    ("q, Esc, Ctrl-C", "go back, quit"),
)
_COLUMNS = (
    *{
        figure.short: figure.about
        for kind in (StreamRow, ConsumerRow, ProcessRow, SourceRow)
        for figure in figures(kind).values()
        if figure.about
    }.items(),
    (
        "actors",
        "busy actors of all actors, in all processes that send heartbeats. The column reason says why there are so many",
    ),
    ("backfill", "the share of the table that is read, and the remaining time"),
)
_COLORS = (
    ("working", GOOD),
    ("growing lag, no worker, source waits", WARN),
    ("dead letters, stream full, breaker open, source stopped or in alarm, process gone", BAD),
    ("blocked", STUCK),
    ("paused", HELD),
)


def help_page(interval: float | None) -> RenderableType:
    """Build the help page, which includes the cost of the updates."""
    cost = f"An update takes about {QUERIES} queries, independent of the amount of data"
    if interval is not None:
        cost += f": about {QUERIES / interval:.3g} per second at an interval of {interval:g} s"
    cost += (
        ". The queries evaluate no conditions on messages. A slow store is queried less often: the pause after an update is at least"
        " 4 times as long as the update took. Messages of a stream or a consumer are read when you open it and on request. Processes"
        " send a heartbeat every 3 s."
    )
    colors = Text("  ").join(Text(meaning, style) for meaning, style in _COLORS)
    sections = (
        ("Keys", _two_columns(_KEYS)),
        ("Columns", _two_columns(_COLUMNS)),
        ("Colors", colors),
        ("Cost", Text(cost, FAINT)),
    )
    return Group(*(Group(Text(heading, STRONG), Padding(content, (0, 0, 1, 2))) for heading, content in sections))


def _two_columns(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, meaning in rows:
        grid.add_row(Text(name, GOOD, no_wrap=True), meaning)
    return grid
