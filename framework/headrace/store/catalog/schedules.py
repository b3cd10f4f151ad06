"""Schedules of periodic messages. See `sql/functions/catalog/periodic.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from headrace.model.errors import UnknownSchedule
from headrace.model.pages import Page
from headrace.model.schedules import RESTARTING, ScheduleInfo, ScheduleSpec
from headrace.store.database.database import Executor
from headrace.store.database.pages import page_of


class PolledSchedule(NamedTuple):
    """The state of a schedule for a process that declares it.

    Attributes:
        held: whether the stored settings are those of the process.
        abandoned: whether no process with the stored settings has run for a while.
        next_at: the next due time, or None if no process has computed it.
        requested_at: when a user has asked for a message that is not published yet.
        now: the database's time.
    """

    name: str
    held: bool
    abandoned: bool
    paused: bool
    next_at: datetime | None
    requested_at: datetime | None
    now: datetime


async def declare_schedule(
    executor: Executor, spec: ScheduleSpec, now: datetime | None = None
) -> dict[str, Any] | None:
    """Create a schedule or change its settings. Returns the settings until now, or None if it is new.

    Raises:
        UnknownStream.
        InvalidInput: it exists with another stream.
    """
    arguments = (spec.name, spec.stream, spec.settings(), spec.digest(), list(RESTARTING), now)
    before = await executor.fetchval(
        "select before from headrace_internal.declare_schedule($1, $2, $3, $4, $5, coalesce($6, clock_timestamp()))",
        *arguments,
    )
    return None if before is None else msgspec.json.decode(before)


async def poll_schedules(
    executor: Executor, names: Sequence[str], digests: Sequence[str], now: datetime | None = None
) -> list[PolledSchedule]:
    """Return the state of those of these schedules that exist. Records that a process runs them."""
    arguments = (list(names), list(digests), now)
    rows = await executor.fetch(
        "select * from headrace_internal.poll_schedules($1, $2, coalesce($3, clock_timestamp()))", *arguments
    )
    return [PolledSchedule(*row) for row in rows]


class ScheduleRun(NamedTuple):
    """Messages of a schedule, and its next due time. The lists run in parallel, and hold JSON as text."""

    due_at: datetime | None
    keys: list[str]
    data: list[str]
    headers: list[str | None]
    then: datetime


async def run_schedule(
    executor: Executor,
    spec: ScheduleSpec,
    digest: str,
    seen: PolledSchedule,
    run: ScheduleRun,
    now: datetime | None = None,
) -> int | None:
    """Publish these messages and move the schedule on, unless it has changed since it was `seen`.

    Returns:
        The number of messages. None if another process was first, or the schedule was paused, changed or removed.

    Raises:
        StreamFull, InvalidInput: nothing was published, and the schedule stays where it is.
    """
    known = {
        "name": spec.name,
        "digest": digest,
        "next_at": seen.next_at,
        "requested_at": seen.requested_at,
        "due_at": run.due_at,
        "next_due": run.then,
    }
    arguments = (spec.stream, msgspec.json.encode(known).decode(), run.keys, run.data, run.headers, now)
    count: int | None = await executor.fetchval(
        "select headrace_internal.run_schedule($1, $2, $3, $4, $5, coalesce($6, clock_timestamp()))", *arguments
    )
    return count


async def schedules(
    executor: Executor,
    *,
    after: str | None = None,
    before: str | None = None,
    limit: int | None = None,
    max_bytes: int | None = None,
) -> Page[ScheduleInfo]:
    """Schedules by name: the first ones, or the last ones if `before` is given.

    Args:
        after, before: only those whose name comes after or before this one.
        limit: the maximum number. None for all.
        max_bytes: return no more schedules once the settings of those found have this size, as text.
    """
    rows = await executor.fetch(
        "select * from headrace_internal.schedule_page(null, $1, $2, $3, $4)", after, before, limit, max_bytes
    )
    return await page_of(
        rows, _info, limit=limit, max_bytes=max_bytes, sized=("settings",), backwards=before is not None
    )


async def schedule(executor: Executor, name: str) -> ScheduleInfo:
    """One schedule. Raises `UnknownSchedule`."""
    row = None
    if "\0" not in name:  # no text in Postgres has one
        row = await executor.fetchrow("select * from headrace_internal.schedule_page($1)", name)
    if row is None:
        raise _unknown(name)
    return _info(row)


async def pause_schedule(executor: Executor, name: str, *, paused: bool) -> None:
    """Pause a schedule, or resume it. Raises `UnknownSchedule`."""
    if not await executor.fetchval("select headrace_internal.pause_schedule($1, $2)", name, paused):
        raise _unknown(name)


async def request_schedule(executor: Executor, name: str) -> bool:
    """Ask for a message of a schedule now. Returns False if the schedule is paused. Raises `UnknownSchedule`."""
    paused = await executor.fetchval("select headrace_internal.request_schedule($1)", name)
    if paused is None:
        raise _unknown(name)
    return not paused


async def delete_schedule(executor: Executor, name: str) -> None:
    """Remove a schedule. Raises `UnknownSchedule`."""
    if not await executor.fetchval("select headrace_internal.delete_schedule($1)", name):
        raise _unknown(name)


def _unknown(name: str) -> UnknownSchedule:
    return UnknownSchedule(f"The schedule {name!r:.80} does not exist. `headrace schedule ls` lists the schedules.")


def _info(row: Any) -> ScheduleInfo:
    found = dict(row)
    return ScheduleInfo(**{**found, "settings": msgspec.json.decode(found["settings"])})
