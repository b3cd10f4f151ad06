"""The operations on consumers and their dead letters, with the bodies of their requests."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from headrace.admin.requests.operation import CONDITION_TIME, CONSUMER, Command, Count, Operation, read
from headrace.model.conditions import selections
from headrace.model.conditions.selections import MAX_CHOSEN, Criterion, Filters, Seq, WhereJson, described
from headrace.model.keys import MAX_KEY_BYTES
from headrace.model.messages.publish_options import MAX_UNIQUE_KEY_BYTES
from headrace.model.pages import MAX_LIMIT
from headrace.model.records import Cancellation, ConsumerInfo
from headrace.model.watching.completions import CompletionPage
from headrace.model.watching.diagnosis import Diagnosis


class Pause(Struct, kw_only=True, forbid_unknown_fields=True):
    """How long a consumer is paused."""

    until: Annotated[datetime | None, Meta(description="When it is resumed. Null for a pause without an end.")] = None


Key = Annotated[str, Meta(max_length=MAX_KEY_BYTES)]


class Cancel(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which messages are cancelled. Exactly one of the fields is given."""

    seqs: Annotated[
        Annotated[list[Seq], Meta(min_length=1, max_length=MAX_CHOSEN)] | None,
        Meta(description="These messages, waiting or at work."),
    ] = None
    key: Annotated[
        Key | None, Meta(description="The messages of this key that wait now.", examples=["orders.us.42"])
    ] = None
    unique_key: Annotated[
        Annotated[str, Meta(max_length=MAX_UNIQUE_KEY_BYTES)] | None,
        Meta(description="The last message of this unique key, waiting or at work."),
    ] = None


class Choice(Struct, kw_only=True, forbid_unknown_fields=True):
    """A selection of messages. All conditions that are given must apply. Bounds are inclusive."""

    filter: Annotated[Filters | None, Meta(description="Which keys.", examples=["orders.us.>"])] = None
    where: Annotated[WhereJson | None, Meta(description="A condition on the content.")] = None
    start_seq: Annotated[Seq | None, Meta(description="The first seq.")] = None
    end_seq: Annotated[Seq | None, Meta(description="The last seq.")] = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    dry_run: Annotated[bool, Meta(description="Only count.")] = False


_TYPES: dict[str, Any] = {
    "filter": Filters,
    "where": WhereJson,
    "seqs": Annotated[list[Seq], Meta(max_length=MAX_CHOSEN)],
}
"""The types of criteria that JSON has in another form than Python."""


def _field(one: Criterion) -> tuple[str, Any, None]:
    limits = {} if one.name in _TYPES else one.limits
    type_ = _TYPES.get(one.name, one.type) | None
    return one.name, Annotated[type_, Meta(description=one.description, extra_json_schema=limits)], None


if TYPE_CHECKING:
    _Criteria = Struct
else:
    _Criteria = msgspec.defstruct(
        "_Criteria", [_field(one) for one in described(selections.DeadLetterCriteria)], kw_only=True
    )


class DeadLetterCriteria(_Criteria, kw_only=True, forbid_unknown_fields=True):
    """A selection of dead letters. All conditions that are given must apply. Without conditions,
    all dead letters are selected."""

    def criteria(self) -> selections.DeadLetterCriteria:
        """Return the arguments for `Admin`."""
        return {one.name: getattr(self, one.name) for one in described(selections.DeadLetterCriteria)}  # type: ignore[return-value]


class DeadLetterChoice(DeadLetterCriteria, kw_only=True, forbid_unknown_fields=True):
    """A selection of dead letters to redrive or purge. All conditions that are given must apply. Without conditions,
    all dead letters are selected."""

    dry_run: Annotated[bool, Meta(description="Only count.")] = False


class HistoryPage(Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of the history of a consumer."""

    key: Annotated[
        Key | None,
        Meta(description="Only messages with this key, which are looked for in the stream."),
    ] = None
    seq: Annotated[Seq | None, Meta(description="Only this message.")] = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="The most entries. With a key, the most messages.")] = 50
    before: Annotated[Annotated[str, Meta(max_length=100)] | None, Meta(description="`next` of the page before.")] = (
        None
    )


_KEY = {"key": "orders.us.cus_a.order_1"}


OPERATIONS: dict[str, Operation] = {
    "why": read(
        CONSUMER + "/why",
        "Read why a consumer is behind",
        Diagnosis,
        Command("consumer why", example="headrace consumer why orders ship"),
    ),
    "history": Operation(
        "GET",
        CONSUMER + "/history",
        "Read the history of a consumer",
        CompletionPage,
        HistoryPage,
        changes=False,
        extra_time=CONDITION_TIME,
    ),
    "pause": Operation(
        "POST", CONSUMER + "/pause", "Pause a consumer", ConsumerInfo, Pause, {"until": "2030-01-31T12:00:00Z"}
    ),
    "resume": Operation(
        "POST",
        CONSUMER + "/resume",
        "Resume a consumer",
        ConsumerInfo,
        command=Command("consumer resume", done="{name!r} of {stream!r} is resumed."),
    ),
    "cancel": Operation(
        "POST",
        CONSUMER + "/cancel",
        "Cancel messages of a consumer",
        Cancellation,
        Cancel,
        {"seqs": [42]},
        command=Command(
            "consumer cancel",
            help="The consumer is done with them without handling them. Handlers that are at them are stopped.",
            example="headrace consumer cancel orders ship --seq 42 --seq 43\nheadrace consumer cancel orders ship --key orders.us.42",
        ),
    ),
    "replay": Operation(
        "POST",
        CONSUMER + "/replay",
        "Replay messages",
        Count("replayed"),
        Choice,
        {"start_time": "2030-01-31T12:00:00Z", "dry_run": True},
        extra_time=CONDITION_TIME,
    ),
    "redrive": Operation(
        "POST",
        CONSUMER + "/dead_letters/redrive",
        "Redrive dead letters",
        Count("redriven"),
        DeadLetterChoice,
        _KEY,
        extra_time=CONDITION_TIME,
    ),
    "purge": Operation(
        "POST",
        CONSUMER + "/dead_letters/purge",
        "Delete dead letters",
        Count("purged"),
        DeadLetterChoice,
        _KEY,
        extra_time=CONDITION_TIME,
    ),
}
