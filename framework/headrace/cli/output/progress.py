"""Progress bars on standard error, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.text.printing import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from headrace.cli.input.line_reader import LineReader


class Progress:
    """Reports the progress of publishing. This base class shows nothing."""

    def __call__(self, published: int) -> None:
        """Report how many messages have been published so far."""

    def print_line(self, line: str) -> None:
        """Print a line on standard error."""
        print(printable(line), file=sys.stderr)


class _ProgressBar(Progress):
    def __init__(self, bar: Bar, lines: LineReader) -> None:
        self._bar = bar
        self._lines = lines
        self._task = bar.add_task("publishing", total=lines.total, messages="0")

    def __call__(self, published: int) -> None:
        self._bar.update(self._task, completed=self._lines.position(), messages=f"{published:,}")


@contextmanager
def progress_bar(lines: LineReader) -> Iterator[Progress]:
    """A progress bar over the bytes of a file. For a pipe the length is unknown, so it shows a count."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    count = TextColumn("{task.fields[messages]} messages")
    known = (BarColumn(), TaskProgressColumn(), count, TimeRemainingColumn())
    with Bar(*(known if lines.total else (BarColumn(), count)), console=Console(stderr=True), transient=True) as bar:
        yield _ProgressBar(bar, lines)


class Step(NamedTuple):
    """The state of work that a server does: its name, the share that is done, from 0 to 1, and more text."""

    name: str
    share: float
    text: str


@contextmanager
def step_bar() -> Iterator[Callable[[Step], None]]:
    """A progress bar of work that a server does."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, text="")
        yield lambda step: bar.update(task, description=printable(step.name), completed=step.share, text=step.text)
