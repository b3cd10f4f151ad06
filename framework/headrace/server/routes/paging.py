"""Pages of lists. Every list that may be long has `limit`, `after` and `before`, and answers `next` and `prev`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from litestar.params import QueryParameter

from headrace.admin import MAX_LIMIT
from headrace.admin.validation import MAX_ANSWER_BYTES
from headrace.model.settings import amount
from headrace.server.errors import Problem
from headrace.server.wire.common import Listed

T = TypeVar("T")
Place = TypeVar("Place", int, str)

_AFTER = "Return what comes after this place of the list: `next` of the page before."
_BEFORE = "Return what comes before this place of the list: `prev` of the page after."
_HIGHEST = 2**62
_NO_NUL = r"^[^\x00]*$"  # Postgres accepts none, not even in a query

PAGE_SIZE = amount(MAX_ANSWER_BYTES, "bytes")
"""The size in words at which a page of messages or dead letters ends."""

AfterSeq = Annotated[int | None, QueryParameter(ge=0, lt=_HIGHEST, description=_AFTER)]
BeforeSeq = Annotated[int | None, QueryParameter(ge=0, lt=_HIGHEST, description=_BEFORE)]
AfterName = Annotated[str | None, QueryParameter(max_length=200, pattern=_NO_NUL, description=_AFTER)]
BeforeName = Annotated[str | None, QueryParameter(max_length=200, pattern=_NO_NUL, description=_BEFORE)]
ListLimit = Annotated[int, QueryParameter(ge=1, le=MAX_LIMIT, description="Maximum number of results.")]


def check_one_place(after: object, before: object) -> None:
    """Raise a `Problem` if both are given."""
    if after is not None and before is not None:
        text = "Give either after or before, not both."
        raise Problem(422, "invalid", text, validation_errors={"before": [text]})


def page(
    items: Sequence[T],
    place: Callable[[T], Place],
    *,
    full: bool,
    after: Place | None = None,
    before: Place | None = None,
    show: Callable[[T], Any] = lambda item: item,
) -> Listed[Any]:
    """Make the answer with a page.

    Args:
        items: the page.
        place: returns the place of an item in the list.
        full: whether the list may go on, in the direction in which the page was read.
        after, before: of the request.
        show: converts an item to its form in the answer.
    """
    following = previous = None
    if items:
        following = place(items[-1]) if full or before is not None else None
        previous = place(items[0]) if (full if before is not None else after is not None) else None
    return Listed([show(item) for item in items], following, previous)


def cut(
    items: Sequence[T],
    place: Callable[[T], str],
    *,
    limit: int,
    after: str | None,
    before: str | None,
    show: Callable[[T], Any],
    order: Callable[[str], Any] = str,
) -> Listed[Any]:
    """Make the answer with a page of a whole list, which is sorted by its places. Only the page is converted.

    `order` returns what places are compared by.
    """
    check_one_place(after, before)
    found = [
        item
        for item in items
        if (after is None or order(place(item)) > order(after))
        and (before is None or order(place(item)) < order(before))
    ]
    taken = found[-limit:] if before is not None else found[:limit]
    return page(taken, place, full=len(found) > limit, after=after, before=before, show=show)


def size_of(item: Any) -> int:
    """The size of the data and headers of a message that were not decoded, in bytes."""
    return len(bytes(item.data)) + (0 if item.headers is None else len(bytes(item.headers)))


def in_streams(place: str) -> tuple[str, str]:
    """What the place `stream:name` of a consumer is compared by."""
    stream, _, name = place.partition(":")
    return stream, name
