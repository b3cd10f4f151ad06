"""API types of dead letters and blocked keys."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from headrace.model.keys import MAX_KEY_BYTES
from headrace.server.wire.common import MAX_CHOSEN, Filters, Seq, Where


class DeadLetterChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    """A selection of dead letters. All conditions that are given must apply. Without conditions,
    all dead letters are selected."""

    seqs: Annotated[list[Seq], Meta(max_length=MAX_CHOSEN)] | None = None
    key: Annotated[str | None, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_KEY_BYTES})] = None
    filter: Annotated[Filters | None, Meta(description="Which keys.")] = None
    where: Annotated[Where | None, Meta(description="A condition on the content.")] = None
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
