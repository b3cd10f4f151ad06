"""What the parts of a pipeline know of those further on: only this. The pipeline ties them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Clock = Callable[[], float]
"""Seconds, monotonic."""


class Settling(Protocol):
    """The settler, as the desk and the fetcher see it."""

    def wake(self) -> None: ...
    async def flush(self) -> None: ...


class Keeping(Protocol):
    """The keeper, as the desk sees it."""

    async def extend(self) -> None: ...


class Fetching(Protocol):
    """The fetcher, as the settler sees it."""

    def room(self) -> None: ...
    def wake(self) -> None: ...


class Acting(Protocol):
    """The actors, as the fetcher sees them."""

    target: int

    def wake(self) -> None: ...
