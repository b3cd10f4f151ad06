"""API types that all answers share."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from headrace.model.errors import ERROR_CODES

T = TypeVar("T")

ACCOUNT_ID = "00000000-0000-0000-0000-000000000000"
"""The id of the account that owns all streams and consumers, for clients whose types have one. A server has no
accounts, so it is the same everywhere."""

AccountId = Annotated[str, Meta(description="For older clients. A server has no accounts, so it is always the same.")]


class Listed(Struct, Generic[T], omit_defaults=True):
    """A list of objects, or a page of it."""

    data: list[T]
    next: Annotated[
        int | str | None, Meta(description="Given if there may be later results: send it as `after` for the next page.")
    ] = None
    prev: Annotated[
        int | str | None,
        Meta(description="Given if there may be earlier results: send it as `before` for the previous page."),
    ] = None
    unavailable: Annotated[
        list[str], Meta(description="The further databases that did not answer, and whose objects are missing here.")
    ] = []


class Error(Struct, kw_only=True, omit_defaults=True):
    """An error: what is wrong, and how to correct it."""

    summary: Annotated[str, Meta(description="One sentence for people.", examples=["There is no stream 'mystream'."])]
    code: Annotated[
        Literal[tuple(ERROR_CODES)],  # type: ignore[valid-type]
        Meta(description="For programs.", examples=["unknown_stream"]),
    ]
    validation_errors: Annotated[
        dict[str, list[str]] | None, Meta(description="The errors of each field.", examples=[{"name": ["…"]}])
    ] = None
    stale: Annotated[list[str] | None, Meta(description="Of a strict settle: the ack ids whose leases were lost.")] = (
        None
    )
    before: Annotated[
        int | None, Meta(description="Of a search for a key: the seq from which on all was searched.")
    ] = None


class Deleted(Struct):
    """The object that was deleted."""

    id: str
    deleted: bool = True


class Success(Struct):
    """A confirmation."""

    success: bool


def given(struct: Struct) -> dict[str, Any]:
    """Return the fields that a request has set."""
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if value is not msgspec.UNSET}


def milliseconds(seconds: float) -> int | float:
    """Convert seconds to milliseconds. Whole numbers become integers, since many clients decode them as such."""
    found = round(seconds * 1000, 3)
    return int(found) if found == int(found) else found
