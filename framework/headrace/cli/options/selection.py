"""Options that select messages by key, by condition and by place. Several commands share them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from cyclopts import Parameter

from headrace.cli.options.common import flag
from headrace.cli.options.times import place
from headrace.cli.problems import UsageProblem

DryRunOption = Annotated[bool, flag("Change nothing: only say how many.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Matching:
    """Selects messages by key and content."""

    filter: Annotated[
        list[str] | None,
        Parameter(
            name="--filter",
            negative="",
            show_default=False,
            help="Only keys that match, such as orders.us.> or orders.*.new; given several times: any of them.",
        ),
    ] = None
    where: Annotated[
        str | None,
        Parameter(
            name="--where",
            show_default=False,
            help="Only messages of which this is true, such as \"data.status = 'paid' and data.total > 100\".",
        ),
    ] = None

    def criteria(self) -> dict[str, Any]:
        """The arguments for `Admin`. Raises `UsageProblem`."""
        return {"filter": self.filter, "where": self.where}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Between(Matching):
    """Selects messages by key and content in a part of the stream."""

    since: Annotated[
        str | None,
        Parameter(
            name="--from",
            show_default=False,
            help="A seq or a time to begin at; 1h is an hour ago. Without: the start.",
        ),
    ] = None
    until: Annotated[
        str | None,
        Parameter(
            name="--to", show_default=False, help="A seq or a time to end at, itself included. Without: the end."
        ),
    ] = None

    def criteria(self) -> dict[str, Any]:
        """The arguments for `Admin`. Raises `UsageProblem`."""
        return super().criteria() | bounds(self.since, "start") | bounds(self.until, "end")


class Bound(TypedDict, total=False):
    """One end of a part of a stream, as arguments for `Admin`."""

    start_seq: int
    start_time: datetime
    end_seq: int
    end_time: datetime


def bounds(text: str | None, edge: Literal["start", "end"]) -> Bound:
    """Parse `--from` (the start) or `--to` (the end). Returns an empty dict if there is no bound.
    Raises `UsageProblem`.
    """
    if text is None or text == edge:
        return {}
    option = "--from" if edge == "start" else "--to"
    found = place(text, option)
    if isinstance(found, str):
        raise UsageProblem(f"{option} {text} leaves nothing: write a seq or a time.")
    if isinstance(found, int):
        return {"start_seq": found} if edge == "start" else {"end_seq": found}
    return {"start_time": found} if edge == "start" else {"end_time": found}
