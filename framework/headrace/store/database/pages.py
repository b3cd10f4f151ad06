"""Make pages of the rows of a query, without holding up the other tasks of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace.model.pages import Page

T = TypeVar("T")

TURN_ENTRIES = 50
TURN_BYTES = 64_000
"""After so many entries of a list, or bytes of them, other tasks have a turn. That is about a millisecond of work."""


class Turns:
    """Gives the other tasks of the event loop a turn now and then, while a long list is worked on."""

    def __init__(self) -> None:
        self._entries = 0
        self._bytes = 0

    async def done(self, size: int = 0) -> None:
        """Count an entry of so many bytes. Yields to the event loop if it is time to."""
        self._entries += 1
        self._bytes += size
        if self._entries >= TURN_ENTRIES or self._bytes >= TURN_BYTES:
            self._entries = self._bytes = 0
            await asyncio.sleep(0)


async def page_of(
    rows: Sequence[Any],
    convert: Callable[[Any], T],
    *,
    limit: int | None = None,
    max_bytes: int | None = None,
    sized: Sequence[str] = (),
    backwards: bool = False,
) -> Page[T]:
    """Convert rows to a page.

    Args:
        convert: converts a row.
        limit, max_bytes: the limits of the query. If the rows reach one of them, there may be more.
        sized: the text columns that the query counts for `max_bytes`.
        backwards: whether the rows were read backwards, and are to be reversed.
    """
    page: Page[T] = Page()
    turns, total = Turns(), 0
    for row in rows:
        page.append(convert(row))
        entry = sum(text_size(row[column]) for column in sized)
        total += entry
        await turns.done(entry)
    if backwards:
        page.reverse()
    page.more = (limit is not None and len(rows) >= limit) or (max_bytes is not None and total >= max_bytes)
    return page


def text_size(text: str | None) -> int:
    """The size of a text in bytes, as Postgres measures it. 0 for null."""
    return 0 if text is None else len(text) if text.isascii() else len(text.encode())
