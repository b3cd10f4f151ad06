"""`headrace observe` without a terminal: keys are pressed, and what stands on the screen is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot
from textual.screen import Screen

from headrace.cli.observe.dialogs import AskPlace, AskText, Confirm
from headrace.cli.observe.observer import Observer

WITHIN = 30.0
"""Seconds that anything here may take before it counts as hung."""


class Person:
    """Sits in front of the program."""

    def __init__(self, observer: Observer, pilot: Pilot[None]) -> None:
        self.observer = observer
        self.pilot = pilot

    @property
    def lines(self) -> list[str]:
        """What stands on the screen that is on top."""
        return [strip.text.rstrip() for strip in self.observer.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def said(self) -> str:
        """The messages that pop up."""
        return "\n".join(one.message for one in self.observer._notifications)

    def line(self, *words: str) -> str:
        """The line with all these words."""
        found = [line for line in self.lines if all(word in line for word in words)]
        assert found, f"no line has {words}:\n{self.text}"
        return found[0]

    async def look(self) -> None:
        """Have the program ask for everything."""
        await self.observer.look()
        await self.settle()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    async def settle(self) -> None:
        """Let the program go on until it has nothing to do. (The pilot's own pause goes by the processor's time, so on a busy
        machine it ends too early.)"""
        quiet = 0
        async with asyncio.timeout(WITHIN):
            while quiet < 2:  # what is done once a queue is empty can lead to more
                await self.pilot._wait_for_screen()
                self.observer.screen._on_timer_update()
                quiet = 0 if self._busy() else quiet + 1

    def _busy(self) -> bool:
        """Whether a message waits, something is to be drawn, or a worker is at it that doesn't wait for somebody's answer."""
        screen = self.observer.screen
        pumps = [self.observer, *screen.walk_children(with_self=True)]
        asks = bool(screen._result_callbacks) and isinstance(screen, Confirm | AskPlace | AskText)
        return (
            any(pump.message_queue_size or pump._next_callbacks for pump in pumps)
            or bool(screen._layout_required or screen._repaint_required or screen._dirty_widgets or screen._callbacks)
            or (not asks and any(not worker.is_finished for worker in self.observer.workers if worker.name != "watch"))
        )

    async def until(self, there: Callable[[], Any]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(WITHIN):
            while not there():
                await self.pilot.pause()

    async def ask(self, key: str, dialog: type[Screen[Any]] = Confirm) -> str:
        """Press a key that opens a dialog. Returns what that says."""
        await self.pilot.press(key)
        await self.until(lambda: isinstance(self.observer.screen, dialog))
        await self.settle()
        return " ".join(self.text.replace("│", " ").split())

    async def answer(self, *keys: str) -> None:
        """Answer a dialog, and wait for what follows from it."""
        await self.pilot.press(*keys)
        await self.until(lambda: not isinstance(self.observer.screen, Confirm | AskPlace | AskText))
        await self.settle()

    async def choose(self, table: str, name: str) -> None:
        """Put the cursor on a line."""
        board = self.observer.screen.query_one(f"#{table}")
        board.focus()
        await self.until(lambda: board.has_focus)
        await self.press("home", "ctrl+home")
        for _ in range(100):
            if name in str(board.current):  # type: ignore[attr-defined]
                return
            await self.press("down")
        raise AssertionError(f"no line of {table} is {name}:\n{self.text}")


@asynccontextmanager
async def in_front_of(admin: Any, *, size: tuple[int, int] = (140, 40), **settings: Any) -> AsyncIterator[Person]:
    """A person in front of the program, which has looked once, and looks again only when told to."""
    observer = Observer(admin, "here", settings.pop("interval", None), **settings)
    async with observer.run_test(size=size) as pilot:
        person = Person(observer, pilot)
        await person.look()
        yield person
