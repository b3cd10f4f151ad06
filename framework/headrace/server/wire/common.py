"""What all answers share."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

T = TypeVar("T")


class Listed(Struct, Generic[T]):
    """A list of things."""

    data: list[T]


class Error(Struct, kw_only=True, omit_defaults=True):
    """What is wrong, and what would be right."""

    summary: Annotated[str, Meta(description="One sentence for people.", examples=["There is no stream 'mystream'."])]
    code: Annotated[str, Meta(description="For programs, in snake case.", examples=["unknown_stream"])]
    validation_errors: Annotated[
        dict[str, list[str]] | None, Meta(description="What is wrong with which field.", examples=[{"name": ["…"]}])
    ] = None
    stale: Annotated[list[str] | None, Meta(description="Of a strict settle: the ack ids whose leases were lost.")] = (
        None
    )


class Deleted(Struct):
    """What was deleted."""

    id: str
    deleted: bool = True


class Success(Struct):
    """It is done."""

    success: bool


def given(struct: Struct) -> dict[str, Any]:
    """The fields that a request has set."""
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if value is not msgspec.UNSET}


def milliseconds(seconds: float) -> int | float:
    """As the wire tells durations: whole ones without a fraction, since many clients read them into integers."""
    found = round(seconds * 1000, 3)
    return int(found) if found == int(found) else found
