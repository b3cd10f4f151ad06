"""Options that select messages by key, by condition and by place. Several commands share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct, structs

from headrace.cli.errors import UsageError
from headrace.cli.options.common import flag
from headrace.cli.options.times import parse_place, past
from headrace.model.conditions.selections import Criterion, described

DryRunOption = Annotated[bool, flag("Change nothing. Only count the messages.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MessageSelection:
    """Selects messages by key and content."""

    filter: Annotated[
        list[str] | None,
        Parameter(
            name="--filter",
            negative="",
            show_default=False,
            help="Only messages with keys that match, such as orders.us.> or orders.*.new. Repeat for several patterns.",
        ),
    ] = None
    where: Annotated[
        str | None,
        Parameter(
            name="--where",
            show_default=False,
            help="Only messages that meet this condition, such as \"data.status = 'paid' and data.total > 100\".",
        ),
    ] = None

    def criteria(self) -> dict[str, Any]:
        """Return the arguments for `Admin`. Raises `UsageError`."""
        return {"filter": self.filter, "where": self.where}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RangeSelection(MessageSelection):
    """Selects messages by key and content in a part of the stream."""

    since: Annotated[
        str | None,
        Parameter(
            name="--from",
            show_default=False,
            help="The first seq or time; 1h is an hour ago. Default: the start.",
        ),
    ] = None
    until: Annotated[
        str | None,
        Parameter(name="--to", show_default=False, help="The last seq or time. Default: the end."),
    ] = None

    def criteria(self) -> dict[str, Any]:
        """Return the arguments for `Admin`. Raises `UsageError`."""
        return super().criteria() | parse_bound(self.since, "start") | parse_bound(self.until, "end")


class RangeBound(TypedDict, total=False):
    """One end of a part of a stream, as arguments for `Admin`."""

    start_seq: int
    start_time: datetime
    end_seq: int
    end_time: datetime


def parse_bound(text: str | None, edge: Literal["start", "end"]) -> RangeBound:
    """Parse `--from` (the start) or `--to` (the end). Returns an empty dict if there is no bound.
    Raises `UsageError`.
    """
    if text is None or text == edge:
        return {}
    option = "--from" if edge == "start" else "--to"
    found = parse_place(text, option)
    if isinstance(found, str):
        raise UsageError(f"{option} {text} selects no messages. Give a seq or a time.")
    if isinstance(found, int):
        return {"start_seq": found} if edge == "start" else {"end_seq": found}
    return {"start_time": found} if edge == "start" else {"end_time": found}


class CriteriaOptions:
    """Options that select something, see `options_of`."""

    def criteria(self) -> dict[str, Any]:
        """Return the arguments for `Admin`. Raises `UsageError`."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        times = {name: past(found[name], f"--{name}") for name in ("since", "until") if found.get(name) is not None}
        return found | times


def options_of(criteria: type) -> type[CriteriaOptions]:
    """Make the options for the criteria of a class, see `headrace.model.conditions.selections`, or for a body of a request."""
    required = {one.name for one in structs.fields(criteria) if one.required} if issubclass(criteria, Struct) else ()
    options = [
        (one.name, _option(one), field() if one.name in required else field(default=None))
        for one in described(criteria)
    ]
    namespace = {"__module__": __name__}  # one of the standard library's is taken for a type without fields
    made = make_dataclass(
        f"{criteria.__name__}Options", options, bases=(CriteriaOptions,), namespace=namespace, frozen=True, kw_only=True
    )
    return Parameter(name="*")(made)


def _option(one: Criterion) -> Any:
    """A list is an option that is repeated. A time is text, such as `1h`, an hour ago."""
    several = one.name == "filter" or get_origin(one.type) in (list, Sequence)
    name = "--" + one.name.replace("_", "-").removesuffix("s" if several else "")
    more = " Repeat for several." if several else " 1h is an hour ago." if one.type is datetime else ""
    numbers = several and get_args(one.type) == (int,)
    type_ = (
        list[int]
        if numbers
        else list[str]
        if several
        else str
        if one.name == "where" or one.type is datetime
        else one.type
    )
    valid = Number(gte=1, lt=2**63) if numbers else None
    return Annotated[
        type_ | None,
        Parameter(name=name, negative="", show_default=False, help=one.description + more, validator=valid),
    ]
