"""Pages of lists. Every list that may be long has `limit`, `after` and `before`, and answers `next` and `prev`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from litestar.params import QueryParameter

from headrace.admin import MAX_LIMIT
from headrace.admin.validation import MAX_ANSWER_BYTES
from headrace.model.conditions.selections import NO_NUL
from headrace.model.pages import Page, PageRequest
from headrace.model.records import ConsumerInfo
from headrace.model.settings import amount
from headrace.server.errors import invalid
from headrace.server.routes.parameters import Limit
from headrace.server.wire.common import Listed
from headrace.server.wire.consumers import MAX_NAME

T = TypeVar("T")
Place = TypeVar("Place", int, str)

_AFTER = "Return what comes after this place of the list: `next` of the page before."
_BEFORE = "Return what comes before this place of the list: `prev` of the page after."
HIGHEST = 2**62
NOT_NEGATIVE = {"minimum": 0}  # Litestar describes no limit of 0
_LONGEST_PAGE_KEY = 48 + 1 + MAX_NAME  # `stream:name` of a consumer

PAGE_SIZE = amount(MAX_ANSWER_BYTES, "bytes")
"""The size in words at which a page ends."""

AfterSeq = Annotated[int | None, QueryParameter(ge=0, lt=HIGHEST, description=_AFTER, schema_extra=NOT_NEGATIVE)]
BeforeSeq = Annotated[int | None, QueryParameter(ge=0, lt=HIGHEST, description=_BEFORE, schema_extra=NOT_NEGATIVE)]
AfterName = Annotated[str | None, QueryParameter(max_length=_LONGEST_PAGE_KEY, pattern=NO_NUL, description=_AFTER)]
BeforeName = Annotated[str | None, QueryParameter(max_length=_LONGEST_PAGE_KEY, pattern=NO_NUL, description=_BEFORE)]


class PageQuery(PageRequest[Place], frozen=True, kw_only=True):
    """The query parameters of a list. Raises a `Problem` if both `after` and `before` are given."""

    def __post_init__(self) -> None:
        if self.after is not None and self.before is not None:
            raise invalid("Give either after or before, not both.", "before")


class SeqPage(PageQuery[int], frozen=True, kw_only=True):
    """A page of a list in the order of seqs."""

    limit: Limit = 100
    after: AfterSeq = None
    before: BeforeSeq = None


class NamePage(PageQuery[str], frozen=True, kw_only=True):
    """A page of a list in the order of names."""

    limit: Limit = MAX_LIMIT
    after: AfterName = None
    before: BeforeName = None


class TextPage(NamePage, frozen=True, kw_only=True):
    """A page of a list whose places are text, of entries that are larger than names."""

    limit: Limit = 100


def page(
    found: Page[T],
    place: Callable[[T], Place],
    asked: PageRequest[Any],
    *,
    show: Callable[[T], Any] = lambda item: item,
    unavailable: Sequence[str] = (),
) -> Listed[Any]:
    """Make the answer with a page.

    Args:
        place: returns the place of an item in the list.
        show: converts an item to its form in the answer.
        unavailable: the databases that did not answer.
    """
    before = asked.before is not None
    first, last = (place(found[0]), place(found[-1])) if found else (None, None)
    end = found.reached if found.reached is not None else first if before else last  # where it continues
    following = (last if before else end) if found.more or before else None
    previous = (end if before else first) if (found.more if before else asked.after is not None) else None
    return Listed([show(item) for item in found], following, previous, list(unavailable))


def consumer_page_key(consumer: ConsumerInfo) -> str:
    """The page key of a consumer in the list of all consumers: `stream:name`."""
    return f"{consumer.stream}:{consumer.name}"


def consumer_of(text: str) -> tuple[str, str]:
    """The stream and the name of a page key of the list of all consumers."""
    stream, _, name = text.partition(":")
    return stream, name
