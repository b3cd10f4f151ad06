"""Pages of lists."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from msgspec import Struct

from headrace.model.errors import InvalidInput
from headrace.model.records import PeekedMessage

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
Peeked = TypeVar("Peeked", bound=PeekedMessage)
Place = TypeVar("Place")
Other = TypeVar("Other")

MAX_LIMIT = 10_000
"""The maximum number of entries of one page."""

MAX_PAGE_BYTES = 4_000_000
"""The size in bytes, as text, at which no more entries are added to a page."""


class Page(list[T]):
    """A page of a list.

    Attributes:
        more: whether the list may continue, in the direction in which the page was read.
        reached: the place up to which the list was searched, if that may be beyond the last item.
    """

    def __init__(self, items: Iterable[T] = (), *, more: bool = False, reached: int | None = None) -> None:
        super().__init__(items)
        self.more = more
        self.reached = reached


class PageRequest(Struct, Generic[Place], frozen=True, kw_only=True):
    """A request for a page: at most `limit` entries that come after a place of a list, or before one."""

    limit: int
    after: Place | None = None
    before: Place | None = None

    def at(self, place: Callable[[Place], Other]) -> PageRequest[Other]:
        """Return the request with its places in another form. An `InvalidInput` of `place` names the field."""
        places: dict[str, Other | None] = {}
        for field in ("after", "before"):
            one = getattr(self, field)
            try:
                places[field] = None if one is None else place(one)
            except InvalidInput as error:
                error.field = error.field or field
                raise
        return PageRequest(limit=self.limit, **places)


def timed_place(text: str, numbers: int) -> list[Any]:
    """Read a place of a list in the order of time: a time with its zone, and this many whole numbers that tell entries of the
    same time apart, as `timed_text` writes them. Raises `ValueError`."""
    time, *rest = text.split(",")
    at, ids = datetime.fromisoformat(time), [int(one) for one in rest]
    if at.tzinfo is None or len(ids) != numbers or not all(0 <= one < 2**63 for one in ids):
        raise ValueError(text)
    return [at, *ids]


def timed_text(place: Sequence[Any]) -> str:
    """Return the text of a place that `timed_place` reads."""
    at, *rest = place
    return ",".join([at.isoformat(), *map(str, rest)])


async def follow(
    read: Callable[[Any, int], Awaitable[Page[T]]],
    place: Callable[[T], Any],
    *,
    after: Any = None,
    first: bool = False,
    limit: int | None = None,
) -> AsyncIterator[list[T]]:
    """Read a list page by page, until it ends or has had `limit` entries.

    Args:
        read: reads the page after a place, which is None at the start, with at most so many entries.
        place: returns the place of an entry.
        after: the place after which the list begins.
        first: whether the first entry of a page has its last place, because the list is read backwards.
        limit: the maximum number of entries. None for all.
    """
    while limit is None or limit > 0:
        page = await read(after, MAX_LIMIT if limit is None else min(limit, MAX_LIMIT))
        if page:
            yield page
            after = place(page[0 if first else -1])
            limit = None if limit is None else limit - len(page)
        if page.more and page.reached is not None:
            after = page.reached
        elif not page.more or not page:
            return


class BoundList(Generic[P, T]):
    """The method of an object that reads a list. Calling it returns the list. `pages` reads it page by page.

    Args:
        pages: reads the pages.
        order: the key by which the whole list is sorted. None for the order of the pages.
    """

    def __init__(self, pages: Callable[P, AsyncIterator[list[T]]], order: Callable[[T], Any] | None = None) -> None:
        self.pages = pages
        self._order = order

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        found = [item async for page in self.pages(*args, **kwargs) for item in page]
        if self._order is not None:
            found.sort(key=self._order)
        return found


class ListMethod(Generic[S, P, T]):
    """A method that reads a list, made of one that reads its pages. See `BoundList`."""

    def __init__(
        self, pages: Callable[Concatenate[S, P], AsyncIterator[list[T]]], order: Callable[[T], Any] | None = None
    ) -> None:
        self._pages = pages
        self.order = order

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[..., Awaitable[list[T]]]: ...

    @overload
    def __get__(self, instance: S, owner: type) -> BoundList[P, T]: ...

    def __get__(self, instance: S | None, owner: type) -> BoundList[P, T] | Callable[..., Awaitable[list[T]]]:
        if instance is None:
            return self._documented()
        return BoundList(partial(self._pages, instance), self.order)

    def _documented(self) -> Callable[..., Awaitable[list[T]]]:
        """The method as a function of the class, for `help` and `inspect`."""

        @wraps(self._pages)
        async def method(instance: S, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
            return await BoundList(partial(self._pages, instance), self.order)(*args, **kwargs)

        signature = inspect.signature(self._pages)
        answer = str(signature.return_annotation).removeprefix("AsyncIterator[").removesuffix("]")
        method.__signature__ = signature.replace(return_annotation=answer)  # type: ignore[attr-defined]
        return method


def listing(pages: Callable[Concatenate[S, P], AsyncIterator[list[T]]]) -> ListMethod[S, P, T]:
    """Make a method that reads a list of one that reads its pages."""
    return ListMethod(pages)


def listing_by(
    order: Callable[[Any], Any],
) -> Callable[[Callable[Concatenate[S, P], AsyncIterator[list[T]]]], ListMethod[S, P, T]]:
    """Make a method that reads a list, sorted by a key, of one that reads its pages in another order."""
    return lambda pages: ListMethod(pages, order)


async def follow_states(
    read: Callable[[int, Sequence[str] | None], Awaitable[Page[Peeked]]],
    states: Sequence[str],
    *,
    after: int,
    limit: int,
) -> list[Peeked]:
    """Read the messages of a consumer, at most `limit` of each state, page by page, by state and seq.

    Args:
        read: reads a page of the messages after a seq, of these states, or of all. If the page was cut, it is complete up
            to its last seq.
        states: all states, in their order.
    """
    found: list[Peeked] = []
    counts = dict.fromkeys(states, 0)
    wanted: Sequence[str] | None = None
    while True:
        page = await read(after, wanted)
        for message in page:
            if counts[message.state] < limit:
                counts[message.state] += 1
                found.append(message)
        wanted = [state for state in states if counts[state] < limit]
        if not page or not page.more or not wanted:
            return sorted(found, key=lambda message: (states.index(message.state), message.seq))
        after = max(message.seq for message in page)
