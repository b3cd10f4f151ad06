"""The operations on messages of a stream, with the bodies of their requests."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from headrace.admin.requests.operation import STREAM, Command, Count, Operation
from headrace.model.conditions.selections import MAX_CHOSEN, Seq


class WhichScheduled(Struct, kw_only=True, forbid_unknown_fields=True):
    """A selection of a stream's scheduled messages."""

    ids: Annotated[
        Annotated[list[Seq], Meta(max_length=MAX_CHOSEN)] | None,
        Meta(description="Only those with these ids. By default all, of which the first 10,000 that are due."),
    ] = None


OPERATIONS: dict[str, Operation] = {
    "unschedule": Operation(
        "POST",
        STREAM + "/unschedule",
        "Cancel scheduled messages",
        Count("cancelled"),
        WhichScheduled,
        {"ids": [17, 18]},
        command=Command(
            "stream unschedule",
            help="They are not published. Messages that were published already stay.",
            question="Cancel scheduled messages of {stream!r}?",
            example="headrace stream unschedule orders --id 17 --id 18",
        ),
    ),
}
