"""Dead letters and blocked keys, as the wire has them, and what is done about them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct


class DeadLetterChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: those to which all applies that is given; all of them, if nothing is."""

    seqs: list[int] | None = None
    key: str | None = None
    filter: Annotated[str | list[str] | None, Meta(description="Which keys.")] = None
    where: Annotated[str | dict[str, Any] | None, Meta(description="A condition on the content.")] = None
    dry_run: Annotated[bool, Meta(description="Only count.")] = False


class Redriven(Struct):
    """How many dead letters will be delivered again."""

    redriven: int


class RedrivenAnswer(Struct):
    """How many dead letters will be delivered again."""

    data: Redriven


class Purged(Struct):
    """How many dead letters were forgotten."""

    purged: int


class PurgedAnswer(Struct):
    """How many dead letters were forgotten."""

    data: Purged
