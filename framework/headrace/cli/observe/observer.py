"""The application of `headrace observe`: it fetches an overview at each interval and shows it. It keeps
running while the store is unreachable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import Static

from headrace.cli.observe.details import about_worker
from headrace.cli.observe.dialogs import Page
from headrace.cli.observe.figures import BAD, FAINT, GOOD, WARN, lasting, pace, short
from headrace.cli.observe.help import help_page
from headrace.cli.observe.history import History, Picture, WorkerLine
from headrace.cli.observe.home_screen import HomeScreen
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client import Administration

T = TypeVar("T")

PATIENCE = 10.0
"""Timeout of one update, in seconds."""

SHARE = 4.0
"""The pause after an update is at least this many times the update's duration, so a slow store is
queried less often.
"""

THEME = Theme(
    name="headrace",
    primary="#3fa796",
    secondary="#5b8fb9",
    accent="#e5b567",
    warning="#e5b567",
    error="#f2777a",
    success="#5fd7af",
    foreground="#d5dbe1",
    background="#0f1418",
    surface="#0f1418",
    panel="#1b242b",
    variables={
        "block-cursor-background": "#24433f",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-text-style": "none",
        "block-cursor-blurred-background": "#161d22",
        "footer-key-foreground": "#3fa796",
        "footer-background": "#161d22",
        "border": "#3fa796",
        "border-blurred": "#33404a",
    },
)


class Observer(App[None]):
    """Shows all streams, consumers, sources and processes.

    Args:
        admin: the server or the database.
        where: a description of it for the title.
        interval: seconds between updates. None updates only on request.
        clock: a monotonic clock, in seconds.
    """

    TITLE = "headrace observe"
    CSS_PATH = Path(__file__).with_name("observer.tcss")
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(
        self,
        admin: Administration,
        where: str,
        interval: float | None = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.admin = admin
        self.picture: Picture | None = None
        self.away: str | None = None
        """Why the last update failed, or None."""
        self._where = where
        self._interval = interval
        self._clock = clock
        self._history = History()
        self._seen_at: float | None = None
        self.register_theme(THEME)
        self.theme = THEME.name

    @property
    def now(self) -> datetime:
        """The time of the picture, by the database's clock."""
        return datetime.now(UTC) if self.picture is None else self.picture.at

    def on_mount(self) -> None:
        self.push_screen(HomeScreen())
        if self._interval is not None:
            self.run_worker(self._watch(self._interval), name="watch")

    async def _watch(self, interval: float) -> None:
        while True:
            took = await self.look()
            await asyncio.sleep(rest(interval, took))

    async def look(self) -> float:
        """Fetch an overview once and show it. Returns how many seconds that took."""
        began = self._clock()
        try:
            overview = await asyncio.wait_for(self.admin.overview(), PATIENCE)
        except HeadraceError as error:
            self.away = str(error)
        except TimeoutError:
            self.away = f"There was no answer for {PATIENCE:g} s."
        else:
            self.away, self._seen_at = None, self._clock()
            self.picture = self._history.note(overview)
        self.show()
        return self._clock() - began

    def show(self) -> None:
        """Update all screens."""
        for screen in self.screen_stack:
            if self.picture is not None and self.away is None and (show := getattr(screen, "show", None)) is not None:
                show(self.picture)
            self._tell(screen)

    def _tell(self, screen: Screen[Any]) -> None:
        """Update the lines at the top: the server or database, the totals, and whether the store is unreachable."""
        for bar in screen.query("#bar").results(Static):
            bar.update(self._bar())
        for line in screen.query("#away").results(Static):
            line.display = self.away is not None
            if self.away is not None:
                line.update(self._apology())

    def _bar(self) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append("headrace ", f"bold {GOOD}")
        picture = self.picture
        if picture is not None:
            for name, value, style in _sums(picture):
                text.append(f" {name} ", FAINT).append(value, style)
            text.append(f"  {picture.at:%H:%M:%S}Z", FAINT)
        return text.append(f"  {self._where}", FAINT)

    def _apology(self) -> Text:
        since = "never seen" if self._seen_at is None else f"as it was {lasting(self._clock() - self._seen_at)} ago"
        return Text(f" Away, {since}: {self.away}", f"bold {BAD}")

    # --- asking and doing

    async def asked(self, call: Awaitable[T]) -> T | None:
        """Await the call and return its result. On an error, show it and return None."""
        try:
            return await call
        except HeadraceError as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)
            return None

    async def attempt(self, call: Awaitable[T], told: str | Callable[[T], str]) -> bool:
        """Await the call, and show that it is done or the error. Returns whether it is done."""
        try:
            found = await call
        except HeadraceError as error:
            self.notify(str(error), severity="error", timeout=10, markup=False)
            return False
        self.notify(told if isinstance(told, str) else told(found), markup=False)
        return True

    def tell_of_worker(self, line: WorkerLine) -> None:
        """Show the full heartbeat of a process."""
        self.push_screen(Page(f"{line.info.host}:{line.info.pid}", about_worker(line.info)))

    def action_help(self) -> None:
        self.push_screen(Page("Help", help_page(self._interval)))


def rest(interval: float, took: float) -> float:
    """Seconds to wait after an update that took this long."""
    return max(interval - took, SHARE * took)


def _sums(picture: Picture) -> list[tuple[str, str, str]]:
    published = sum(stream.rate or 0 for stream in picture.streams)
    done = sum(consumer.rate or 0 for consumer in picture.consumers)
    lag = sum(consumer.info.lag for consumer in picture.consumers)
    dead = sum(consumer.info.dead_letters for consumer in picture.consumers)
    told = [
        ("in/s", pace(published), GOOD if published else ""),
        ("done/s", pace(done), GOOD if done else ""),
        ("lag", short(lag), WARN if any(one.state == "growing" for one in picture.consumers) else ""),
        ("dead", short(dead), BAD if dead else ""),
    ]
    trouble = _trouble(picture)
    return [*told, ("sources", trouble, BAD)] if trouble else told


def _trouble(picture: Picture) -> str:
    """How many sources are stopped or in alarm."""
    counted = {word: sum(source.state == word for source in picture.sources) for word in ("stopped", "alarm")}
    return ", ".join(f"{many} {word}" for word, many in counted.items() if many)
