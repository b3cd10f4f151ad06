"""`headrace schedule ls|info|pause|resume|run|rm`: the schedules of periodic messages."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.options.common import JsonOption
from headrace.cli.options.times import time_or_dash
from headrace.cli.output.json_output import print_json
from headrace.cli.output.results import print_list, print_result
from headrace.cli.output.stderr import print_notice
from headrace.cli.output.tables import print_pairs
from headrace.model.schedules import ScheduleInfo

ScheduleName = Annotated[str, Parameter(name="NAME", help="The schedule's name.")]

_IDLE = "No running process declares the schedule with these settings, so nothing is published."


def ls(*, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """List all schedules."""
    print_list(
        administer(backend, lambda admin: admin.schedules()), json,
        ("schedule", "stream", "every", "zone", "state", "next", "last", "messages"),
        lambda s: (
            s.name, s.stream, str(s.settings["every"]), s.settings["zone"] or "-", s.state, time_or_dash(s.next_at),
            time_or_dash(s.last_due_at), f"{s.messages:,}",
        ),
        empty="There are no schedules. An app declares them with app.every(…).",
    )  # fmt: skip


def info(name: ScheduleName, /, *, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """Show a schedule's settings and its state."""
    schedule = administer(backend, lambda admin: admin.schedule(name))
    if json:
        print_json(schedule)
        return
    print_pairs(_facts(schedule))
    if schedule.state == "idle":
        print_notice(_IDLE)


def run(name: ScheduleName, /, *, backend: Backend = Backend(), json: JsonOption = False) -> None:  # noqa: B008 - frozen
    """Publish a message of a schedule now.

    A process that runs the schedule does it within two seconds. The due times
    stay as they are.
    """
    schedule = administer(backend, lambda admin: admin.run_schedule(name))
    print_result(schedule, json, f"Requested a message of the schedule {name!r}.")
    if schedule.state == "idle":
        print_notice(f"{_IDLE} The request waits for a process that does.")


def _facts(schedule: ScheduleInfo) -> list[tuple[str, str]]:
    settings, functions = schedule.settings, schedule.settings["functions"]
    return [
        ("schedule", schedule.name),
        ("stream", schedule.stream),
        ("every", str(settings["every"])),
        ("zone", settings["zone"] or "-"),
        ("key", functions.get("key") or str(settings["key"])),
        ("data", functions.get("data") or _shortened(settings["data"])),
        ("missed", settings["missed"] if settings["missed"] == "skip" else f"catch up with {settings['max_missed']:,} at most"),
        ("unique key", settings.get("unique_key") or "-"),
        ("state", schedule.state),
        ("next due", time_or_dash(schedule.next_at)),
        ("requested", time_or_dash(schedule.requested_at)),
        ("last due", time_or_dash(schedule.last_due_at)),
        ("last published", time_or_dash(schedule.last_run_at)),
        ("messages", f"{schedule.messages:,}"),
        ("paused", time_or_dash(schedule.paused_at)),
        ("last seen", time_or_dash(schedule.seen_at)),
    ]  # fmt: skip


def _shortened(data: object) -> str:
    text = msgspec.json.encode(data).decode()
    return text if len(text) <= 200 else f"{text[:200]}…"
