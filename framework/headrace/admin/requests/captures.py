"""The operations on sources that capture tables, with the bodies of their requests."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from headrace.admin.requests.operation import CAPTURE_TIME, SOURCE, Command, Count, Operation
from headrace.model.capture import BackfillInfo, Finding
from headrace.model.conditions.selections import MAX_CHOSEN, Seq, WhereJson
from headrace.model.sources import SourceInfo
from headrace.sources.postgres.settings import MOST_TABLES
from headrace.sources.postgres.table_names import MAX_NAME

_Table = Annotated[str, Meta(extra_json_schema={"minLength": 3, "maxLength": MAX_NAME})]


class Resume(Struct, kw_only=True, forbid_unknown_fields=True):
    """How a source is resumed."""

    anew: Annotated[
        bool,
        Meta(description="Create a new slot and read all tables again, instead of continuing. For a lost slot."),
    ] = False


class NewBackfill(Struct, kw_only=True, forbid_unknown_fields=True):
    """The rows to backfill."""

    tables: Annotated[
        Annotated[list[_Table], Meta(max_length=MOST_TABLES)] | None,
        Meta(description="Tables of the source. null for all that aren't being read already."),
    ] = None
    where: Annotated[
        WhereJson | None,
        Meta(
            description="A condition on the columns of the rows. null for all rows.",
            examples=["data.record.total > 100"],
        ),
    ] = None
    rate: Annotated[int, Meta(ge=1, lt=2**31, description="Rows a second, at most.")] | None = None


class NewVerification(Struct, kw_only=True, forbid_unknown_fields=True):
    """The rows to compare with the stream."""

    tables: Annotated[
        Annotated[list[_Table], Meta(max_length=MOST_TABLES)] | None,
        Meta(description="Tables of the source. null for all."),
    ] = None
    repair: Annotated[bool, Meta(description="Whether to correct the stream.")] = False
    rate: Annotated[int, Meta(ge=1, lt=2**31, description="Maximum rows per second.")] | None = None


class WhichBackfills(Struct, kw_only=True, forbid_unknown_fields=True):
    """A selection of a source's backfills."""

    id: Annotated[str | None, Meta(description="The id of one of them. null for all that have not ended.")] = None


class WhichFailures(Struct, kw_only=True, forbid_unknown_fields=True):
    """A selection of a source's failed changes."""

    ids: Annotated[
        Annotated[list[Seq], Meta(max_length=MAX_CHOSEN)] | None,
        Meta(description="Only those with these ids. By default all."),
    ] = None


_IDS = {"ids": [1, 2]}


OPERATIONS: dict[str, Operation] = {
    "check_source": Operation(
        "POST", SOURCE + "/check", "Check a source", list[Finding], changes=False, extra_time=CAPTURE_TIME
    ),
    "pause_source": Operation(
        "POST",
        SOURCE + "/pause",
        "Pause a source",
        SourceInfo,
        command=Command(
            "source postgres pause",
            help="Meanwhile the captured server keeps all WAL that is not captured yet. Don't leave a source paused for long.",
            done="Paused the source {result.name!r}. Its slot keeps WAL until you run `headrace source postgres resume {result.name}`.",
        ),
    ),
    "resume_source": Operation(
        "POST",
        SOURCE + "/resume",
        "Resume a source",
        SourceInfo,
        Resume,
        {"anew": False},
        command=Command(
            "source postgres resume",
            example="headrace source postgres resume orders --anew",
            help="It continues from where it was paused.",
            done="Resumed the source {result.name!r}.",
        ),
    ),
    "start_backfill": Operation(
        "POST",
        SOURCE + "/backfills",
        "Start backfills",
        list[BackfillInfo],
        NewBackfill,
        {"tables": ["public.orders"], "where": "data.record.total > 100"},
        201,
        extra_time=CAPTURE_TIME,
    ),
    "verify_source": Operation(
        "POST",
        SOURCE + "/verify",
        "Compare tables with the stream",
        list[BackfillInfo],
        NewVerification,
        {"tables": ["public.orders"], "repair": False},
        201,
        extra_time=CAPTURE_TIME,
    ),
    "cancel_backfills": Operation(
        "POST",
        SOURCE + "/backfills/cancel",
        "Cancel backfills",
        Count("cancelled", "backfill"),
        WhichBackfills,
        {"id": None},
    ),
    "retry_failures": Operation(
        "POST",
        SOURCE + "/failures/retry",
        "Retry failed changes",
        Count("retried", "change"),
        WhichFailures,
        _IDS,
        command=Command(
            "source postgres failures retry",
            help="The process that captures the source tries them again, and publishes those that succeed. The exit code is 1 if there were none.",
            done="To be retried: {result}.",
        ),
    ),
    "drop_failures": Operation(
        "POST",
        SOURCE + "/failures/drop",
        "Delete failed changes",
        Count("dropped", "change"),
        WhichFailures,
        _IDS,
        command=Command(
            "source postgres failures drop",
            help="They are not published to any stream. The exit code is 1 if there were none, or if the answer was no.",
            question="Delete failed changes of the source {ref!r}? They are not in any stream.",
        ),
    ),
}
