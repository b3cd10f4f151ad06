"""Lists over all databases of a server: the pages of each, merged to one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from heapq import merge
from typing import Any, TypeVar

import anyio
from msgspec.structs import replace

from headrace import store
from headrace.admin.live.together import together
from headrace.model.errors import HeadraceError
from headrace.model.pages import Page, PageRequest
from headrace.server.engine import Engine

T = TypeVar("T")
Place = TypeVar("Place")

READ_TIMEOUT = 5.0
"""Seconds that each further database has to return its part of a list."""


def merged(pages: Sequence[Page[T]], place: Callable[[T], Any], limit: int, *, backwards: bool = False) -> Page[T]:
    """Merge the pages that several databases return for one request.

    Args:
        pages: each in the order of `place`. One with `more` may have ended early.
        place: returns the place of an item, which no other item has.
        limit: the largest number of items.
        backwards: whether the pages were read backwards, and end at their first item.
    """
    items: list[T] = list(merge(*pages, key=place))
    # Beyond the end of a page that continues, items of its database may be missing.
    if backwards:
        bounds = [place(page[0]) for page in pages if page.more and page]
        kept = [item for item in items if not bounds or place(item) >= max(bounds)][-limit:]
    else:
        bounds = [place(page[-1]) for page in pages if page.more and page]
        kept = [item for item in items if not bounds or place(item) <= min(bounds)][:limit]
    return Page(kept, more=any(page.more for page in pages) or len(kept) < len(items))


async def reachable(engine: Engine, kind: store.PlaceKind, items: Sequence[T], name: Callable[[T], str]) -> list[T]:
    """Leave out what requests don't reach in a further database, because another database has the name.

    Args:
        engine: the engine of the database that the items are from.
        kind: whether `name` returns the name of a stream or of a source.
    """
    if engine.names is None or not items:
        return list(items)
    names = await engine.names.reachable(kind, {name(item) for item in items})
    return [item for item in items if name(item) in names]


async def read_all(engine: Engine, read: Callable[[Engine], Awaitable[T]]) -> tuple[list[T], list[str]]:
    """Read from all databases at the same time.

    Args:
        engine: the engine of the server's own database, or of the only one to read.
        read: reads from one.

    Returns:
        What they return, beginning with the engine's own, and the names of the further databases that did not answer.

    Raises:
        What `read` raises for the engine's own database.
    """
    if engine.further is None or not engine.further.exist:
        return [await read(engine)], []
    engines, away = await engine.further.engines()
    found: dict[str, T] = {}

    async def read_one(name: str, other: Engine) -> None:
        try:
            with anyio.fail_after(READ_TIMEOUT):
                found[name] = await read(other)
        except (HeadraceError, TimeoutError):
            away.append(name)

    own: list[T] = []

    async def read_own() -> None:
        own.append(await read(engine))

    await together(read_own, *(partial(read_one, name, other) for name, other in engines.items()))
    return [*own, *(found[name] for name in sorted(found))], sorted(away)


async def merged_page(
    engine: Engine,
    read: Callable[[Engine, PageRequest[Place]], Awaitable[Page[T]]],
    asked: PageRequest[Place],
    *,
    kind: store.PlaceKind | None,
    name: Callable[[T], str],
    place: Callable[[T], Place],
    order: Callable[[T], Any] | None = None,
) -> tuple[Page[T], list[str]]:
    """Read a page of the list of all databases, as far as requests reach its items.

    Args:
        engine: as for `read_all`.
        read: reads a page of one database.
        kind, name: as for `reachable`. The kind is None for a list of something that is in the engine's own database.
        place: returns the place of an item, which no other item has.
        order: the key by which the list is sorted. By default the place.

    Returns:
        The page, and the names of the further databases that did not answer.
    """

    if kind is None:
        return await read(engine, asked), []

    async def read_one(one: Engine) -> Page[T]:
        part = asked
        while True:
            page = await read(one, part)
            kept = Page(await reachable(one, kind, page, name), more=page.more)
            if kept or not page or not page.more:
                return kept  # empty at the end of the list only
            back = part.before is not None
            part = replace(part, before=place(page[0])) if back else replace(part, after=place(page[-1]))

    pages, away = await read_all(engine, read_one)
    return merged(pages, order or place, asked.limit, backwards=asked.before is not None), away
