"""Operations: what `Admin` does with one object, each described once.

A row of `OPERATIONS` has the name of a method of `Admin`, the request of the HTTP API that does the same, and the command.
The route, its part of the OpenAPI description, the method of `Remote` and the command follow from the row, from the type of
its body, and from the docstring of the method. So a new operation is a method of `Admin` and a row here.

Not here are lists over several databases, calls of more than one request, and what streams. Their routes are in
`headrace.server.routes`, and their calls in `headrace.client.calls`.
"""

from __future__ import annotations

from string import Formatter
from typing import Any

from msgspec import Struct

from headrace.admin.requests.bodies import (
    Choice,
    DeadLetterChoice,
    NewBackfill,
    NewVerification,
    Pause,
    Resume,
    WhichBackfills,
    WhichFailures,
)
from headrace.model.capture import BackfillInfo, Finding
from headrace.model.records import ConsumerInfo, DatabaseCheck, DatabaseInfo
from headrace.model.schedules import ScheduleInfo
from headrace.model.sources import SourceInfo
from headrace.model.tokens import TokenInfo

# The paths of objects. The names in them are those of the first arguments of a method.
CONSUMER = "/v1/streams/{stream}/consumers/{name}"
DATABASE = "/v1/databases/{name}"
SCHEDULE = "/v1/schedules/{name}"
SOURCE = "/v1/sources/{ref}"
STREAM = "/v1/streams/{stream}"
TOKEN = "/v1/tokens/{ref}"

CONDITION_TIME = 30.0
"""Seconds in which a server evaluates a condition on messages."""

CAPTURE_TIME = 30.0
"""Seconds in which a server queries a captured database."""


class Count(Struct, frozen=True):
    """An answer that counts: `{"data": {field: count}}`. The method returns the count.

    Attributes:
        field: its field.
        unit: one of the things that are counted.
    """

    field: str
    unit: str = "message"


class Command(Struct, frozen=True):
    """The command of an operation. Its help begins with the operation's summary.

    Attributes:
        name: its group and its name in the group.
        help: the rest of its help.
        done: the line that it prints, a template with the names in the operation's path, and `result`, what the method has
            returned. Without one it prints the result.
        fields: the fields of the result that it prints. By default all.
        question: asked first, a template with the names in the path.
        example: command lines at the end of its help.
    """

    name: str
    help: str = ""
    done: str = ""
    fields: tuple[str, ...] = ()
    question: str = ""
    example: str = ""


class Operation(Struct, frozen=True):
    """The request of an operation.

    Attributes:
        method: GET, POST or DELETE.
        path: the path of the object, and the rest.
        summary: what it does, in a few words.
        answer: what the method returns: a `Count`, the type of an object, a list of a type, or None.
        body: the type of the request's body, or of its query if it is a GET. Its fields are the other arguments of the
            method.
        example: a body.
        status: the status of the answer.
        changes: whether it changes something.
        extra_time: seconds that it may take in addition to the timeout of every request.
        command: its command. None if the command has code of its own, or there is none.
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
    command: Command | None = None

    @property
    def names(self) -> list[str]:
        """The names in the path, which are the first arguments of the method."""
        return [name for _, name, _, _ in Formatter().parse(self.path) if name]


def _read(path: str, summary: str, answer: Any, command: Command | None = None) -> Operation:
    return Operation("GET", path, summary, answer, changes=False, command=command)


_KEY = {"key": "orders.us.cus_a.order_1"}
_IDS = {"ids": [1, 2]}

OPERATIONS: dict[str, Operation] = {
    # --- consumers
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
    # --- schedules
    "schedule": _read(SCHEDULE, "Read a schedule", ScheduleInfo),
    "pause_schedule": Operation(
        "POST",
        SCHEDULE + "/pause",
        "Pause a schedule",
        ScheduleInfo,
        command=Command(
            "schedule pause", help="Nothing is published until you resume it.", done="Paused the schedule {name!r}."
        ),
    ),
    "resume_schedule": Operation(
        "POST",
        SCHEDULE + "/resume",
        "Resume a schedule",
        ScheduleInfo,
        command=Command(
            "schedule resume",
            help="Its first due time is counted from now. The due times of the pause are not made up for.",
            done="Resumed the schedule {name!r}.",
        ),
    ),
    "run_schedule": Operation("POST", SCHEDULE + "/run", "Run a schedule now", ScheduleInfo),
    "delete_schedule": Operation(
        "DELETE",
        SCHEDULE,
        "Delete a schedule",
        command=Command(
            "schedule rm",
            help="Running processes stop it. Remove it from the app as well, because the next process that declares it creates it again.",
            done="Deleted the schedule {name!r}.",
            question="Delete the schedule {name!r}?",
        ),
    ),
    # --- further databases and tokens
    "database": _read(
        DATABASE,
        "Show where servers find the URL of a database",
        DatabaseInfo,
        Command("database show"),
    ),
    "check_database": Operation("POST", DATABASE + "/check", "Check a database", DatabaseCheck, changes=False),
    "revoke_token": Operation(
        "DELETE",
        TOKEN,
        "Revoke a token",
        TokenInfo,
        command=Command(
            "token revoke",
            example="headrace token revoke shop",
            help="Servers apply this within two seconds. The token stays on the list, and its name can't be used again.",
            done="Revoked the token {result.name!r} ({result.id}).",
        ),
    ),
}
"""The operations by the names of their methods."""
