"""The operations on schedules."""

from __future__ import annotations

from headrace.admin.requests.operation import SCHEDULE, Command, Operation, read
from headrace.model.schedules import ScheduleInfo

OPERATIONS: dict[str, Operation] = {
    "schedule": read(SCHEDULE, "Read a schedule", ScheduleInfo),
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
            help="Its first due time is counted from now. The due times of the pause are skipped.",
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
}
