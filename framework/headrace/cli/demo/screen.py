"""The screen of the demo while it runs: a live picture in a terminal, otherwise a line for each event."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.cli.demo.scenario import Lane, Show, State
from headrace.model.text.counting import count
from headrace.model.text.printing import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

ROWS = 8
"""The most lanes shown."""

BAR = 30
"""Width of a bar in characters."""

REFRESHES = 8
"""Refreshes a second."""

PROGRESS_EVERY = 5.0
"""Seconds between two lines of progress without a terminal."""


@contextmanager
def screen(name: str) -> Iterator[Show]:
    """Yield a function that shows a state.

    Args:
        name: of the history.
    """
    if not sys.stdout.isatty():
        yield _Lines().show
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(highlight=False), refresh_per_second=REFRESHES) as live:
        yield lambda state: live.update(_picture(name, state))


class _Lines:
    def __init__(self) -> None:
        self._shown = 0
        self._next = PROGRESS_EVERY

    def show(self, state: State) -> None:
        for second, text in state.events[self._shown :]:
            print(f"{second:6.1f} s  {text}", flush=True)
        self._shown = len(state.events)
        if state.seconds >= self._next:
            self._next = state.seconds + PROGRESS_EVERY
            print(
                f"{state.seconds:6.1f} s  published {state.published:,}, handled {state.handled:,}, lag {state.lag:,}",
                flush=True,
            )


def _picture(name: str, state: State) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    of = max(state.published, state.total, 1)
    figures = _grid()
    for title, value, about in (
        ("published", state.published, f"{count(state.published, 'change')} of {name}"),
        ("handled", state.handled, f"{state.handled:,}, lag {count(state.lag, 'message')}"),
    ):
        figures.add_row(Text(title, "dim"), _bar(value / of), about)
    keys = len({lane.key for lane in state.lanes})
    spread = f"of {count(keys, 'key')}, in {count(state.processes, 'worker')}"
    figures.add_row(Text("in flight", "dim"), count(len(state.lanes), "message"), spread)
    lanes = _grid()
    rows = _rows(state.lanes)
    for lane, more in rows:
        again = f", attempt {lane.attempt}" if lane.attempt > 1 else ""
        also = f" and {more:,} behind it" if more else ""
        style = "yellow" if again else ""
        lanes.add_row(
            Text(f"process {lane.process}", "dim"),
            Text(_file(lane.key), style),
            Text(f"message {lane.seq:,}{also}{again}", style),
        )
    for _ in range(ROWS - len(rows)):
        lanes.add_row("")
    events = _grid()
    for second, text in state.events:
        events.add_row(Text(f"{second:5.1f} s", "dim"), text)
    return Group(figures, Text(), lanes, Text(), events)


def _grid() -> Table:
    """A table of three columns without lines. Text that doesn't fit is cut, so that each row is a line."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for _ in range(3):
        grid.add_column(no_wrap=True, overflow="ellipsis")
    return grid


def _bar(share: float) -> str:
    filled = min(BAR, round(BAR * share))
    return "█" * filled + "░" * (BAR - filled)


def _rows(lanes: list[Lane]) -> list[tuple[Lane, int]]:
    """The first message in flight of some keys of each process, with how many of the key follow it."""
    first: dict[str, Lane] = {}
    behind: dict[str, int] = {}
    for lane in lanes:
        if lane.key in first:
            behind[lane.key] += 1
        else:
            first[lane.key], behind[lane.key] = lane, 0
    by_process: dict[int, list[tuple[Lane, int]]] = {}
    for key, lane in first.items():
        by_process.setdefault(lane.process, []).append((lane, behind[key]))
    share = ROWS // max(len(by_process), 1)
    return [row for process in sorted(by_process) for row in by_process[process][:share]]


def _file(key: str) -> str:
    """The path in a key, which is cut at its start if it is long."""
    path = printable(key.split(".", 2)[-1].replace("%2E", "."))
    return path if len(path) <= 40 else f"…{path[-39:]}"
