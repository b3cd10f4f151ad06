"""backfills: publish the existing rows of tables while their changes are captured."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from headrace.model.capture import BackfillInfo, BackfillKind, Differences
from headrace.model.errors import InvalidInput
from headrace.model.pages import Page
from headrace.store.database.database import Executor
from headrace.store.database.pages import page_of


class BackfillToDo(msgspec.Struct, frozen=True, kw_only=True):
    """A backfill, or a comparison of another kind, to work on.

    Attributes:
        number: its number in the database.
        place: the key of the last row that was read. While a comparison reads the stream, `{"key": …}` with the key of
            the last message.
        complete: whether a backfill of the whole table was done before.
    """

    number: int
    kind: BackfillKind
    table: str
    where: Any
    rate: int | None
    fresh: bool
    place: Any
    read: int
    total: int | None
    complete: bool


async def start_backfill(
    executor: Executor,
    source: str,
    table: str,
    where: str | None = None,
    rate: int | None = None,
    kind: BackfillKind = "backfill",
) -> str | None:
    """Request a backfill for a source, or a comparison, by the source's id. Returns its id, or None if the same is
    queued already, or if a backfill of that table is running.
    """
    found = await executor.fetchval(
        "select headrace_internal.request_backfill($1, $2, $3, $4, $5)", source, table, kind, where, rate
    )
    return None if found is None else str(found)


async def request_due_verifications(
    executor: Executor, number: int, epoch: int, tables: Sequence[str], every: float, *, now: datetime | None = None
) -> None:
    """Request a verification of each of these tables whose last one was requested more than `every` seconds ago.
    Raises `LeaseLost`.
    """
    await executor.fetchval(
        "select headrace_internal.request_due_verifications($1, $2, $3, $4, coalesce($5, clock_timestamp()))",
        number,
        epoch,
        tables,
        timedelta(seconds=every),
        now,
    )


async def request_resync(
    executor: Executor, source: str, table: str, kind: BackfillKind, rate: int | None
) -> str | None:
    """Request a backfill or a repair of a whole table, by the source's id. Returns the id of the run that will do it, or None
    if another one of that table has to finish first.
    """
    found = await executor.fetchval(
        "select headrace_internal.request_resync($1, $2, $3, $4)", source, table, kind, rate
    )
    return None if found is None else str(found)


async def backfills(
    executor: Executor,
    source: str | None = None,
    *,
    limit: int = 100,
    after: str | None = None,
    before: str | None = None,
    max_bytes: int | None = None,
) -> Page[BackfillInfo]:
    """The backfills of a source, by its id, or of all sources, the newest first: the first ones of this list, or the
    last ones if `before` is given.

    Args:
        after, before: only those after or before this place of the list, see `BackfillInfo.place`.
        max_bytes: return no more backfills once the conditions and reasons of those found have this size, as text.

    Raises:
        InvalidInput: `after` or `before` is not a place.
    """
    arguments = (source, limit, *_place("after", after), *_place("before", before), max_bytes)
    rows = await executor.fetch(
        "select * from headrace_internal.list_backfills($1, $2, $3, $4, $5, $6, $7)", *arguments
    )
    return await page_of(
        rows, _backfill, limit=limit, max_bytes=max_bytes, sized=("condition", "reason"), backwards=before is not None
    )


def _place(name: str, text: str | None) -> tuple[datetime | None, UUID | None]:
    """The time and the id of a place of the list. `name` is that of the argument."""
    if text is None:
        return None, None
    time, _, id_ = text.partition("_")
    try:
        return datetime.fromisoformat(time).replace(tzinfo=UTC), UUID(id_)
    except ValueError:
        raise InvalidInput(
            f"{name}={text[:80]!r} is not a place of a list of backfills. Send `next` or `prev` of another page.",
            field=name,
        ) from None


def _backfill(row: Any) -> BackfillInfo:
    found = dict(row)
    found["id"], found["table"] = str(found["id"]), found.pop("relation")
    differences = found.pop("differences")
    found["differences"] = None if differences is None else msgspec.json.decode(differences, type=Differences)
    condition = found.pop("condition")
    return BackfillInfo(**found, where=_decoded(condition))


async def next_backfill(executor: Executor, number: int) -> BackfillToDo | None:
    """The backfill to work on, by the source's number: the running one, or else the oldest queued one."""
    row = await executor.fetchrow("select * from headrace_internal.backfill_to_do($1)", number)
    if row is None:
        return None
    return BackfillToDo(
        number=row["id"],
        table=row["relation"],
        where=_decoded(row["condition"]),
        fresh=row["state"] == "queued",
        place=_decoded(row["place"]),
        **{name: row[name] for name in ("kind", "rate", "read", "total", "complete")},
    )


def _decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


async def begin_backfill(executor: Executor, number: int, epoch: int, backfill: int, total: int | None) -> bool:
    """Begin or continue a backfill. Returns whether it is still wanted. Raises `LeaseLost`."""
    begun: bool = await executor.fetchval(
        "select headrace_internal.begin_backfill($1, $2, $3, $4)", number, epoch, backfill, total
    )
    return begun


async def backfill_wanted(executor: Executor, backfill: int) -> bool:
    """Whether a backfill is still wanted: neither it was cancelled nor its source deleted."""
    wanted: bool = await executor.fetchval("select headrace_internal.is_backfill_unfinished($1)", backfill)
    return wanted


async def fail_backfill(executor: Executor, number: int, epoch: int, backfill: int, reason: str) -> None:
    """Mark a backfill as failed. Raises `LeaseLost`."""
    await executor.fetchval("select headrace_internal.fail_backfill($1, $2, $3, $4)", number, epoch, backfill, reason)


async def cancel_backfills(executor: Executor, source: str, id: str | None = None) -> int:  # noqa: A002 - the record's word
    """Cancel one backfill or all backfills of a source, by the source's id. Returns how many."""
    count: int = await executor.fetchval("select headrace_internal.cancel_backfills($1, $2)", source, id)
    return count
