"""Bodies of requests, whose fields are arguments of the methods of `Admin`. See `operations`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from headrace.model.conditions import selections
from headrace.model.conditions.selections import MAX_CHOSEN, Criterion, Filters, Seq, WhereJson, described
from headrace.sources.postgres.settings import MOST_TABLES
from headrace.sources.postgres.table_names import MAX_NAME

# --- consumers


class Pause(Struct, kw_only=True, forbid_unknown_fields=True):
    """How long a consumer is paused."""

    until: Annotated[datetime | None, Meta(description="When it is resumed. Null for a pause without an end.")] = None


# --- messages and dead letters


class Choice(Struct, kw_only=True, forbid_unknown_fields=True):
    """A selection of messages. All conditions that are given must apply. Bounds are inclusive."""

    filter: Annotated[Filters | None, Meta(description="Which keys.", examples=["orders.us.>"])] = None
    where: Annotated[WhereJson | None, Meta(description="A condition on the content.")] = None
    start_seq: Annotated[Seq | None, Meta(description="The first seq.")] = None
    end_seq: Annotated[Seq | None, Meta(description="The last seq.")] = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    dry_run: Annotated[bool, Meta(description="Only count.")] = False


_TYPES: dict[str, Any] = {
    "filter": Filters,
    "where": WhereJson,
    "seqs": Annotated[list[Seq], Meta(max_length=MAX_CHOSEN)],
}
"""The types of criteria that JSON has in another form than Python."""


def _field(one: Criterion) -> tuple[str, Any, None]:
    limits = {} if one.name in _TYPES else one.limits
    type_ = _TYPES.get(one.name, one.type) | None
    return one.name, Annotated[type_, Meta(description=one.description, extra_json_schema=limits)], None


if TYPE_CHECKING:
    _Criteria = Struct
else:
    _Criteria = msgspec.defstruct(
        "_Criteria", [_field(one) for one in described(selections.DeadLetterCriteria)], kw_only=True
    )


class DeadLetterCriteria(_Criteria, kw_only=True, forbid_unknown_fields=True):
    """A selection of dead letters. All conditions that are given must apply. Without conditions,
    all dead letters are selected."""

    def criteria(self) -> selections.DeadLetterCriteria:
        """Return the arguments for `Admin`."""
        return {one.name: getattr(self, one.name) for one in described(selections.DeadLetterCriteria)}  # type: ignore[return-value]


class DeadLetterChoice(DeadLetterCriteria, kw_only=True, forbid_unknown_fields=True):
    """A selection of dead letters to redrive or purge. All conditions that are given must apply. Without conditions,
    all dead letters are selected."""

    dry_run: Annotated[bool, Meta(description="Only count.")] = False


# --- sources that capture tables

_Table = Annotated[str, Meta(extra_json_schema={"minLength": 3, "maxLength": MAX_NAME})]


class Resume(Struct, kw_only=True, forbid_unknown_fields=True):
    """How a source is resumed."""

    anew: Annotated[
        bool,
        Meta(description="Not from where it was: with a new slot, and all tables read again. For a slot that is lost."),
    ] = False


class NewBackfill(Struct, kw_only=True, forbid_unknown_fields=True):
    """What to backfill."""

    tables: Annotated[
        Annotated[list[_Table], Meta(max_length=MOST_TABLES)] | None,
        Meta(description="Which of the source's; null for all that aren't being read already."),
    ] = None
    where: Annotated[
        WhereJson | None,
        Meta(description="Which rows, by their columns; null for all.", examples=["data.record.total > 100"]),
    ] = None
    rate: Annotated[int, Meta(ge=1, lt=2**31, description="Rows a second, at most.")] | None = None


class NewVerification(Struct, kw_only=True, forbid_unknown_fields=True):
    """What to compare with the stream."""

    tables: Annotated[
        Annotated[list[_Table], Meta(max_length=MOST_TABLES)] | None,
        Meta(description="Which of the source's tables. Null for all."),
    ] = None
    repair: Annotated[bool, Meta(description="Whether to correct the stream.")] = False
    rate: Annotated[int, Meta(ge=1, lt=2**31, description="Maximum rows per second.")] | None = None


class WhichBackfills(Struct, kw_only=True, forbid_unknown_fields=True):
    """A selection of a source's backfills."""

    id: Annotated[str | None, Meta(description="One of them; null for all that have not ended.")] = None


class WhichFailures(Struct, kw_only=True, forbid_unknown_fields=True):
    """A selection of a source's failed changes."""

    ids: Annotated[
        Annotated[list[Seq], Meta(max_length=MAX_CHOSEN)] | None,
        Meta(description="Only those with these ids. By default all."),
    ] = None
