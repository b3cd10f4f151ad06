"""Signals: a part says that something has happened, and does not know which parts react."""

from __future__ import annotations

from collections.abc import Callable


class Signal:
    """Something that happens again and again. A part that reacts connects itself when it is made."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def connect(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time, after those that were connected before."""
        self._listeners.append(listener)

    def __call__(self) -> None:
        """Call all listeners."""
        for listener in self._listeners:
            listener()
