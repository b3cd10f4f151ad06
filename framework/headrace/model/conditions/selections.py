"""Criteria that select dead letters. Each is described here, and nowhere else: the arguments of `Admin`, the parameters and
bodies of the HTTP API, the options of the commands and the reference pages follow from it. The schema gets them as JSON, see
`headrace_internal.dead_letter_condition`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Annotated, Any, TypedDict, get_args, get_type_hints

from msgspec import Meta, Struct

from headrace.model.conditions import Condition
from headrace.model.conditions.tree import MAX_JSON_BYTES
from headrace.model.keys import MAX_FILTERS, MAX_KEY_BYTES
from headrace.model.records import Death
from headrace.model.text.error_text import MAX_ERROR

Where = str | Mapping[str, Any] | Condition | None
"""A condition on the content, as text, as its JSON, or parsed."""

Filter = str | Sequence[str] | None
"""One filter of keys, or several."""

MAX_CHOSEN = 10_000
"""Largest number of objects that a request may choose one by one."""


Seq = Annotated[int, Meta(ge=1, le=2**63 - 1)]
"""The seq of a message in a request."""

# The next types describe limits that are checked where filters and conditions are read, with better errors.

FilterText = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_KEY_BYTES})]
"""One filter of keys, in a request."""

Filters = FilterText | Annotated[list[FilterText], Meta(extra_json_schema={"maxItems": MAX_FILTERS})]
"""One filter of keys, or several, in a request."""

WhereJson = Annotated[str, Meta(extra_json_schema={"maxLength": MAX_JSON_BYTES})] | dict[str, Any]
"""A condition in a request, as text or as its JSON, which has the same limit as text."""


class DeathCriteria(TypedDict, total=False):
    """Criteria that select dead letters, except for their seqs. All that are given must apply. None is the same as not given."""

    key: Annotated[
        str | None,
        Meta(description="Only those with this key.", extra_json_schema={"minLength": 1, "maxLength": MAX_KEY_BYTES}),
    ]
    filter: Annotated[
        Filter, Meta(description="Only those with keys that match one of these filters, such as `orders.us.>`.")
    ]
    where: Annotated[
        Where,
        Meta(
            description="Only those whose messages meet this condition, such as `data.total > 100`.",
            extra_json_schema={"maxLength": MAX_JSON_BYTES},
        ),
    ]
    reason: Annotated[Death | None, Meta(description="Only those that died for this reason.")]
    error_type: Annotated[
        str | None,
        Meta(
            description="Only those with exactly this type of error. Empty for those without one.",
            extra_json_schema={"maxLength": MAX_ERROR},
        ),
    ]
    error: Annotated[
        str | None,
        Meta(
            description="Only those with exactly this text of the error. Empty for those without one.",
            extra_json_schema={"maxLength": MAX_ERROR},
        ),
    ]
    since: Annotated[datetime | None, Meta(description="Only those that died at this time or later.")]
    until: Annotated[datetime | None, Meta(description="Only those that died before this time.")]


class DeadLetterCriteria(DeathCriteria, total=False):
    """Criteria that select dead letters. All that are given must apply. None is the same as not given."""

    seqs: Annotated[
        Sequence[int] | None,
        Meta(description="Only those with these seqs.", extra_json_schema={"maxItems": MAX_CHOSEN}),
    ]


class Criterion(Struct, frozen=True):
    """One of the criteria.

    Attributes:
        name: its name.
        type: its type, without None.
        description: what it selects.
        limits: its limits as JSON Schema has them.
    """

    name: str
    type: Any
    description: str
    limits: dict[str, Any]


@cache
def described(criteria: type) -> tuple[Criterion, ...]:
    """Return the criteria of a class of this module, or the fields of a body, in their order."""
    plain = get_type_hints(criteria)
    hints = get_type_hints(criteria, include_extras=True)
    return tuple(_criterion(name, plain[name], get_args(hint)[-1]) for name, hint in hints.items())


def _criterion(name: str, type_: Any, meta: Meta) -> Criterion:
    types = [one for one in get_args(type_) if one is not type(None)]
    optional = type(None) in get_args(type_) and len(types) == 1
    return Criterion(name, types[0] if optional else type_, meta.description or "", meta.extra_json_schema or {})
