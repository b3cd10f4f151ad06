"""Operations: what `Admin` does with one object, each described once.

A row of `OPERATIONS` has the name of a method of `Admin`, and the request of the HTTP API that does the same. The route, its
part of the OpenAPI description and the method of `Remote` follow from the row, from the type of its body, and from the
docstring of the method. So a new operation is a method of `Admin` and a row here.

Not here are lists over several databases, calls of more than one request, and what streams. Their routes are in
`headrace.server.routes`, and their calls in `headrace.client.calls`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from headrace.admin.requests.bodies import (
    Choice,
    DeadLetterChoice,
    NewBackfill,
    NewVerification,
    Resume,
    WhichBackfills,
    WhichFailures,
)
from headrace.model.capture import BackfillInfo, Finding
from headrace.model.records import DatabaseCheck, DatabaseInfo
from headrace.model.schedules import ScheduleInfo
from headrace.model.sources import SourceInfo
from headrace.model.tokens import TokenInfo

# The paths of objects. The names in them are those of the first arguments of a method.
CONSUMER = "/v1/streams/{stream}/consumers/{name}"
DATABASE = "/v1/databases/{name}"
SCHEDULE = "/v1/schedules/{name}"
SOURCE = "/v1/sources/{ref}"
TOKEN = "/v1/tokens/{ref}"

CONDITION_TIME = 30.0
"""Seconds in which a server evaluates a condition on messages."""

CAPTURE_TIME = 30.0
"""Seconds in which a server queries a captured database."""


class Count(Struct, frozen=True):
    """An answer that counts: `{"data": {field: count}}`. The method returns the count."""

    field: str


class Operation(Struct, frozen=True):
    """The request of an operation.

    Attributes:
        method: GET, POST or DELETE.
        path: the path of the object, and the rest.
        summary: what it does, in a few words.
        answer: what the method returns: a `Count`, the type of an object, a list of a type, or None.
        body: the type of the request's body. Its fields are the other arguments of the method.
        example: a body.
        status: the status of the answer.
        changes: whether it changes something.
        extra_time: seconds that it may take in addition to the timeout of every request.
    """

    method: str
    path: str
    summary: str
    answer: Any = None
    body: type[Struct] | None = None
    example: dict[str, Any] | None = None
    status: int = 200
    changes: bool = True
    extra_time: float = 0.0


def _read(path: str, summary: str, answer: Any) -> Operation:
    return Operation("GET", path, summary, answer, changes=False)


_KEY = {"key": "orders.us.cus_a.order_1"}
_IDS = {"ids": [1, 2]}

OPERATIONS: dict[str, Operation] = {
    # --- consumers
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
    # --- sources that capture tables
    "check_source": Operation(
        "POST", SOURCE + "/check", "Check a source", list[Finding], changes=False, extra_time=CAPTURE_TIME
    ),
    "pause_source": Operation("POST", SOURCE + "/pause", "Pause a source", SourceInfo),
    "resume_source": Operation("POST", SOURCE + "/resume", "Resume a source", SourceInfo, Resume, {"anew": False}),
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
        "POST", SOURCE + "/backfills/cancel", "Cancel backfills", Count("cancelled"), WhichBackfills, {"id": None}
    ),
    "retry_failures": Operation(
        "POST", SOURCE + "/failures/retry", "Retry failed changes", Count("retried"), WhichFailures, _IDS
    ),
    "drop_failures": Operation(
        "POST", SOURCE + "/failures/drop", "Delete failed changes", Count("dropped"), WhichFailures, _IDS
    ),
    # --- schedules
    "schedule": _read(SCHEDULE, "Read a schedule", ScheduleInfo),
    "pause_schedule": Operation("POST", SCHEDULE + "/pause", "Pause a schedule", ScheduleInfo),
    "resume_schedule": Operation("POST", SCHEDULE + "/resume", "Resume a schedule", ScheduleInfo),
    "run_schedule": Operation("POST", SCHEDULE + "/run", "Run a schedule now", ScheduleInfo),
    "delete_schedule": Operation("DELETE", SCHEDULE, "Delete a schedule"),
    # --- further databases and tokens
    "database": _read(DATABASE, "Read a database", DatabaseInfo),
    "check_database": Operation("POST", DATABASE + "/check", "Check a database", DatabaseCheck, changes=False),
    "revoke_token": Operation("DELETE", TOKEN, "Revoke a token", TokenInfo),
}
"""The operations by the names of their methods."""
