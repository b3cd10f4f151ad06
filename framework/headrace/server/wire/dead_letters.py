"""API types of dead letters and blocked keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from headrace.model.keys import MAX_KEY_BYTES
from headrace.model.records import Death
from headrace.model.text.error_text import MAX_ERROR
from headrace.server.wire.common import MAX_CHOSEN, Filters, Seq, Where

ErrorText = Annotated[str, Meta(extra_json_schema={"maxLength": MAX_ERROR})]
"""The text or type of an error."""


class DeadLetterCriteria(Struct, kw_only=True, forbid_unknown_fields=True):
    """A selection of dead letters. All conditions that are given must apply. Without conditions,
    all dead letters are selected."""

    seqs: Annotated[list[Seq], Meta(max_length=MAX_CHOSEN)] | None = None
    key: Annotated[str | None, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_KEY_BYTES})] = None
    filter: Annotated[Filters | None, Meta(description="Which keys.")] = None
    where: Annotated[Where | None, Meta(description="A condition on the content.")] = None
    reason: Annotated[Death | None, Meta(description="Why they died.")] = None
    error_type: Annotated[ErrorText | None, Meta(description='The exact type of the error. `""` for none.')] = None
    error: Annotated[ErrorText | None, Meta(description='The exact text of the error. `""` for none.')] = None
    since: Annotated[datetime | None, Meta(description="Died at this time or later.")] = None
    until: Annotated[datetime | None, Meta(description="Died before this time.")] = None

    def criteria(self) -> dict[str, Any]:
        """Return the arguments for `Admin`, without `dry_run`."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if name != "dry_run"}


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
