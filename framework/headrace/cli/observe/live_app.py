"""The base of the application of `headrace observe`: it fetches a snapshot at each interval, shows it on all
screens, and keeps running while the server or the database is unreachable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from rich.text import Text
from textual.app import App
from textual.screen import Screen
from textual.widgets import Static

from headrace.cli.observe.display.colors import BAD, FAINT, GOOD
from headrace.cli.observe.display.theme import THEME
from headrace.cli.observe.display.totals import totals
from headrace.cli.options.times import roughly
from headrace.model.errors import HeadraceError
from headrace.model.text.printing import printable, printable_lines
from headrace.model.watching.live import LiveSnapshot

if TYPE_CHECKING:
    from headrace.client import Administration

T = TypeVar("T")

UPDATE_TIMEOUT = 10.0
"""Timeout of one update, in seconds."""

MIN_PAUSE_RATIO = 4.0
"""The pause after an update is at least this many times the update's duration, so a slow store is
queried less often.
"""


class LiveApp(App[None]):
    """Fetches the current state of all streams, consumers, sources and processes, and shows it on all screens.

    Args:
        admin: the server or the database.
        description: a description of it for the title.
        interval: seconds between updates. None updates only on request.
        clock: a monotonic clock, in seconds.
        timeout: timeout of one update, in seconds.
    """

    def __init__(
        self,
        admin: Administration,
        description: str,
        interval: float | None = 1.0,
        clock: Callable[[], float] = time.monotonic,
        timeout: float = UPDATE_TIMEOUT,
    ) -> None:
        super().__init__()
        self.admin = admin
        self.interval = interval
        self.snapshot: LiveSnapshot | None = None
        self.update_error: str | None = None
        """Why the last update failed, or None."""
        self._description = description
        self._clock = clock
        self._timeout = timeout
        self._updated_at: float | None = None
        self.register_theme(THEME)
        self.theme = THEME.name

    @property
    def now(self) -> datetime:
        """The time of the snapshot, by the database's clock."""
        return datetime.now(UTC) if self.snapshot is None else self.snapshot.at

    def start_polling(self) -> None:
        """Update at each interval from now on."""
        if self.interval is not None:
            self.run_worker(self._poll_repeatedly(self.interval), name="poll")

    async def _poll_repeatedly(self, interval: float) -> None:
        while True:
            took = await self.poll()
            await asyncio.sleep(pause_after(interval, took))

    async def poll(self) -> float:
        """Fetch a snapshot once and show it. Returns how many seconds that took."""
        started = self._clock()
        try:
            snapshot = await asyncio.wait_for(self.admin.snapshot(), self._timeout)
        except HeadraceError as error:
            self.update_error = str(error)
        except TimeoutError:
            self.update_error = f"There was no answer for {self._timeout:g} s."
        else:
            self.update_error = snapshot.error
            if snapshot.error is None:
                self.snapshot, self._updated_at = snapshot, self._clock()
        self.show()
        return self._clock() - started

    def show(self) -> None:
        """Update all screens."""
        for screen in self.screen_stack:
            snapshot, show = self.snapshot, getattr(screen, "show", None)
            if snapshot is not None and self.update_error is None and show is not None:
                show(snapshot)
            self._update_header(screen)

    def _update_header(self, screen: Screen[Any]) -> None:
        """Update the lines at the top: the totals, the server or database, and why the last update failed."""
        for bar in screen.query("#bar").results(Static):
            bar.update(self._header_text())
        for line in screen.query("#error").results(Static):
            line.display = self.update_error is not None
            if self.update_error is not None:
                line.update(self._error_text())

    def _header_text(self) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append("headrace ", f"bold {GOOD}")
        snapshot = self.snapshot
        if snapshot is not None:
            for name, value, style in totals(snapshot):
                text.append(f" {name} ", FAINT).append(value, style)
            text.append(f"  {snapshot.at:%H:%M:%S}Z", FAINT)
        return text.append(f"  {printable(self._description)}", FAINT)

    def _error_text(self) -> Text:
        if self._updated_at is None:
            age = "nothing received yet"
        else:
            age = f"last update {roughly(self._clock() - self._updated_at)} ago"
        return Text(printable(f" Unreachable, {age}: {self.update_error}"), f"bold {BAD}")

    # --- calls

    async def fetch(self, call: Awaitable[T]) -> T | None:
        """Await a call and return its result. If it fails, show the error and return None."""
        try:
            return await call
        except HeadraceError as error:
            self._show_error(error)
            return None

    async def apply_change(self, call: Awaitable[T], done: str | Callable[[T], str]) -> bool:
        """Await a call, and show that it is done, or its error. Returns whether it is done."""
        try:
            result = await call
        except HeadraceError as error:
            self._show_error(error)
            return False
        self.notify(printable_lines(done if isinstance(done, str) else done(result)), markup=False)
        return True

    def _show_error(self, error: HeadraceError) -> None:
        self.notify(printable_lines(str(error)), severity="error", timeout=10, markup=False)


def pause_after(interval: float, took: float) -> float:
    """Return how many seconds to wait after an update that took this long."""
    return max(interval - took, MIN_PAUSE_RATIO * took)
