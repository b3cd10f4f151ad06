"""Options that select messages by key, by condition and by place. Several commands share them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from cyclopts import Parameter

from headrace.cli.errors import UsageError
from headrace.cli.options.common import flag
from headrace.cli.options.times import parse_place

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
