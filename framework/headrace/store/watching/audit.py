"""The audit log: record changes, list them, and delete old entries."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack

import msgspec

from headrace.model.conditions.selections import AuditCriteria, check_criteria
from headrace.model.pages import Page
from headrace.model.watching.audit import KEPT_ENTRIES, KEPT_SECONDS, Actor, AuditEntry, AuditObject, Change
from headrace.store.database.database import Executor
from headrace.store.database.pages import page_of

_ID_BITS = 10
"""The bits of an id below its time."""

MAX_DELETED = 5_000
"""The most entries that one call of `delete_old_changes` deletes."""


async def record_change(executor: Executor, actor: Actor, change: Change, *, now: datetime | None = None) -> None:
    """Record a change, in the transaction that makes it. A skipped one is not recorded."""
    if change.skipped:
        return
    arguments = (actor.name, actor.via, change.action, change.stream, change.kind, change.name, change.encoded(), now)
    await executor.fetchval(
        "select headrace_internal.record_change($1, $2, $3, $4, $5, $6, $7, coalesce($8, clock_timestamp()))",
        *arguments,
    )


async def changes(
    executor: Executor,
    *,
    streams: Collection[str] | None = None,
    limit: int = 100,
    after: int | None = None,
    before: int | None = None,
    **criteria: Unpack[AuditCriteria],
) -> Page[AuditEntry]:
    """Entries of the audit log that match, the newest first: those older than the entry `after`, or the last ones newer than
    the entry `before`.

    Args:
        streams: only entries of any of these streams. None for all, also those of no stream.
    """
    given = check_criteria(AuditCriteria, criteria)
    names = None if streams is None else sorted(streams)
    stream = given.pop("stream", None)
    arguments = (stream, names, msgspec.json.encode(given).decode(), limit, after, before)
    rows = await executor.fetch("select * from headrace_internal.audit_page($1, $2, $3, $4, $5, $6)", *arguments)
    return await page_of(rows, _entry, limit=limit, backwards=before is not None)


async def delete_old_changes(
    executor: Executor, *, keep: float = KEPT_SECONDS, entries: int = KEPT_ENTRIES, now: datetime | None = None
) -> int:
    """Delete entries older than `keep` seconds, and all but the newest `entries`. Returns how many were deleted, at most
    `MAX_DELETED`."""
    arguments = (timedelta(seconds=keep), entries, MAX_DELETED, now)
    deleted: int = await executor.fetchval(
        "select headrace_internal.delete_old_changes($1, $2, $3, coalesce($4, clock_timestamp()))", *arguments
    )
    return deleted


def _entry(row: Any) -> AuditEntry:
    return AuditEntry(
        id=str(row["id"]),
        at=datetime.fromtimestamp((row["id"] >> _ID_BITS) / 1_000_000, UTC),
        actor=row["actor"],
        via=row["via"],
        role=row["role"],
        action=row["action"],
        stream=row["stream"],
        object=AuditObject(row["object_kind"], row["object_name"]),
        details=msgspec.json.decode(row["details"]),
    )
