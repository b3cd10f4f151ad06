"""`headrace observe` without a terminal. The test presses keys and reads the screen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot
from textual.screen import Screen

from headrace.admin import Admin
from headrace.cli.observe.observer import Observer
from headrace.cli.observe.screens.dialogs import AskFilter, AskPlace, Confirm

WITHIN = 30.0
"""Timeout of every operation here in seconds, after which it counts as hung."""


class Person:
    """A user in front of the program."""

    def __init__(self, observer: Observer, pilot: Pilot[None]) -> None:
        self.observer = observer
        self.pilot = pilot

    @property
    def lines(self) -> list[str]:
        """The lines of the top screen."""
        return [strip.text.rstrip() for strip in self.observer.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def notifications(self) -> str:
        """The texts of the notifications."""
        return "\n".join(one.message for one in self.observer._notifications)

    def line(self, *words: str) -> str:
        """Return the line with all these words."""
        found = [line for line in self.lines if all(word in line for word in words)]
        assert found, f"no line has {words}:\n{self.text}"
        return found[0]

    async def poll(self) -> None:
        """Have the program update, when everything is due to be read."""
        if isinstance(self.observer.admin, Admin):
            self.observer.admin._live.changed()
        await self.observer.poll()
        await self.settle()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    async def settle(self) -> None:
        """Wait until the program is idle.

        The pilot's own pause measures processor time, so it ends too early on a busy machine.
        """
        quiet = 0
        async with asyncio.timeout(WITHIN):
            while quiet < 2:  # handling the last event of a queue can add more
                await self.pilot._wait_for_screen()
                self.observer.screen._on_timer_update()
                quiet = 0 if self._busy() else quiet + 1

    def _busy(self) -> bool:
        """Whether a message is queued, a redraw is due, or a worker runs that does not wait for an
        answer of the user.
        """
        screen = self.observer.screen
        pumps = [self.observer, *screen.walk_children(with_self=True)]
        asks = bool(screen._result_callbacks) and isinstance(screen, Confirm | AskPlace | AskFilter)
        return (
            any(pump.message_queue_size or pump._next_callbacks for pump in pumps)
            or bool(screen._layout_required or screen._repaint_required or screen._dirty_widgets or screen._callbacks)
            or (not asks and any(not worker.is_finished for worker in self.observer.workers if worker.name != "poll"))
        )

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until the condition is true."""
        async with asyncio.timeout(WITHIN):
            while not condition():
                await self.pilot.pause()

    async def ask(self, key: str, dialog: type[Screen[Any]] = Confirm) -> str:
        """Press a key that opens a dialog. Returns the dialog's text."""
        await self.pilot.press(key)
        await self.until(lambda: isinstance(self.observer.screen, dialog))
        await self.settle()
        return " ".join(self.text.replace("│", " ").split())

    async def answer(self, *keys: str) -> None:
        """Answer a dialog, and wait for the consequences."""
        await self.pilot.press(*keys)
        await self.until(lambda: not isinstance(self.observer.screen, Confirm | AskPlace | AskFilter))
        await self.settle()

    async def select(self, table: str, name: str) -> None:
        """Move the cursor to the row of a table that has this name."""
        table_widget = self.observer.screen.query_one(f"#{table}")
        table_widget.focus()
        await self.until(lambda: table_widget.has_focus)
        await self.press("home", "ctrl+home")
        for _ in range(100):
            if name in str(table_widget.current_row):  # type: ignore[attr-defined]
                return
            await self.press("down")
        raise AssertionError(f"no line of {table} is {name}:\n{self.text}")


@asynccontextmanager
async def in_front_of(admin: Any, *, size: tuple[int, int] = (140, 40), **settings: Any) -> AsyncIterator[Person]:
    """A user in front of the program, which has queried once, and does so again only on request."""
    observer = Observer(admin, "here", settings.pop("interval", None), **settings)
    async with observer.run_test(size=size) as pilot:
        person = Person(observer, pilot)
        await person.poll()
        yield person
