"""API types of dead letters and blocked keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from headrace.model import selections
from headrace.model.selections import MAX_CHOSEN, Criterion, described
from headrace.server.wire.common import Filters, Seq, Where

_TYPES: dict[str, Any] = {"filter": Filters, "where": Where, "seqs": Annotated[list[Seq], Meta(max_length=MAX_CHOSEN)]}
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


class Redriven(Struct):
    """The number of dead letters that will be delivered again."""

    redriven: int


class RedrivenAnswer(Struct):
    """The number of dead letters that will be delivered again."""

    data: Redriven


class Purged(Struct):
    """The number of dead letters that were deleted."""

    purged: int


class PurgedAnswer(Struct):
    """The number of dead letters that were deleted."""

    data: Purged
