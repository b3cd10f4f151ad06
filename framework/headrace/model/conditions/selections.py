"""Criteria that select messages, dead letters and changes. Each is described here, as an argument of `Admin`.

Those of dead letters and changes are described nowhere else: the parameters and bodies of the HTTP API, the options of the
commands and the reference pages follow from it. The schema gets those of dead letters as JSON, see
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
from headrace.model.errors import InvalidInput
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


NO_NUL = r"^[^\x00]*$"
"""The pattern of text that may be in a query: Postgres accepts no NUL."""


class MessageCriteria(TypedDict, total=False):
    """Criteria that select messages by key and content. All that are given must apply."""

    filter: Annotated[Filter, Meta(description="Only those with keys that match one of these filters.")]
    where: Annotated[Where, Meta(description="Only those that meet this condition.")]


class RangeCriteria(MessageCriteria, total=False):
    """Criteria that select messages of a stream. All that are given must apply. Bounds are inclusive."""

    start_seq: Annotated[int | None, Meta(description="The first seq.")]
    end_seq: Annotated[int | None, Meta(description="The last seq.")]
    start_time: Annotated[datetime | None, Meta(description="The first time of publication.")]
    end_time: Annotated[datetime | None, Meta(description="The last time of publication.")]


class SearchCriteria(MessageCriteria, total=False):
    """Criteria of a search through a stream. All that are given must apply."""

    after: Annotated[int | None, Meta(description="Search upwards, above this seq.")]
    before: Annotated[int | None, Meta(description="Search below this seq.")]
    since: Annotated[datetime | None, Meta(description="Only those that were published at this time or later.")]
    until: Annotated[datetime | None, Meta(description="Only those that were published before this time.")]


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


class AuditCriteria(TypedDict, total=False):
    """Criteria that select changes in the audit log. All that are given must apply. None is the same as not given."""

    stream: Annotated[
        str | None,
        Meta(
            description="Only changes about the stream of this name, which need not exist any more.",
            max_length=200,
            pattern=NO_NUL,
        ),
    ]
    actor: Annotated[str | None, Meta(description="Only changes in this name.", max_length=200, pattern=NO_NUL)]
    action: Annotated[
        str | None,
        Meta(
            description="Only changes of this kind: an action such as `consumer.seek`, or what comes before the dot.",
            max_length=100,
            pattern=NO_NUL,
        ),
    ]
    since: Annotated[datetime | None, Meta(description="Only changes at this time or later.")]
    until: Annotated[datetime | None, Meta(description="Only changes before this time.")]


class Criterion(Struct, frozen=True):
    """One of the criteria.

    Attributes:
        name: its name.
        type: its type, without None.
        description: what it selects.
        limits: its limits as JSON Schema has them.
        checks: limits of requests that nothing else checks.
    """

    name: str
    type: Any
    description: str
    limits: dict[str, Any]
    checks: dict[str, Any]


@cache
def described(criteria: type) -> tuple[Criterion, ...]:
    """Return the criteria of a class of this module, or the fields of a body, in their order."""
    plain = get_type_hints(criteria)
    hints = get_type_hints(criteria, include_extras=True)
    return tuple(_criterion(name, plain[name], get_args(hint)[-1]) for name, hint in hints.items())


def _criterion(name: str, type_: Any, meta: Meta) -> Criterion:
    types = [one for one in get_args(type_) if one is not type(None)]
    optional = type(None) in get_args(type_) and len(types) == 1
    limits = meta.extra_json_schema or {}
    checks = {check: limit for check in ("max_length", "pattern") if (limit := getattr(meta, check)) is not None}
    return Criterion(name, types[0] if optional else type_, meta.description or "", limits, checks)


def check_criteria(criteria: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the criteria that are given. Raises `InvalidInput` for one that does not exist, since more would be selected."""
    known = [one.name for one in described(criteria)]
    for name in values.keys() - known:
        raise InvalidInput(f"There is no criterion {name!r}. Use {', '.join(known)}.", field=name)
    return {name: value for name, value in values.items() if value is not None}
