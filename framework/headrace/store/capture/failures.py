"""Changes that could not be made into messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from headrace.model.capture import FailedChange
from headrace.model.pages import Page
from headrace.store.database.database import Executor
from headrace.store.database.pages import page_of


class FailureToRetry(msgspec.Struct, frozen=True, kw_only=True):
    """A failed change to try again. `data` is the change as JSON text, before it was transformed."""

    id: int
    key: str | None
    data: str
    failed_at: datetime


async def capture_failures(
    executor: Executor,
    id: str,  # noqa: A002
    *,
    above: int = 0,
    below: int | None = None,
    limit: int = 100,
    max_bytes: int | None = None,
    raw: bool = False,
) -> Page[FailedChange]:
    """Changes that could not be made into messages, the oldest first, by the source's id: the first ones, or the last
    ones if `below` is given.

    Args:
        above, below: only those with a larger or a smaller id.
        max_bytes: return no more changes once those found have this size, as text.
        raw: return the changes as `msgspec.Raw`.
    """
    rows = await executor.fetch(
        "select * from headrace_internal.capture_failure_page($1, $2, $3, $4, $5)", id, above, limit, below, max_bytes
    )
    return await page_of(
        rows,
        lambda row: _failure(row, raw),
        limit=limit,
        max_bytes=max_bytes,
        sized=("data", "error", "key"),
        backwards=below is not None,
    )


def _failure(row: Any, raw: bool) -> FailedChange:
    data = msgspec.Raw(row["data"]) if raw else msgspec.json.decode(row["data"])
    return FailedChange(**{**dict(row), "data": data})


async def retry_capture_failures(executor: Executor, id: str, ids: Sequence[int] | None = None) -> int:  # noqa: A002
    """Mark failed changes to be tried again: those with these ids, or all. Returns how many."""
    count: int = await executor.fetchval("select headrace_internal.retry_capture_failures($1, $2)", id, ids)
    return count


async def drop_capture_failures(executor: Executor, id: str, ids: Sequence[int] | None = None) -> int:  # noqa: A002
    """Delete failed changes: those with these ids, or all. Returns how many."""
    count: int = await executor.fetchval("select headrace_internal.drop_capture_failures($1, $2)", id, ids)
    return count


async def failures_to_retry(executor: Executor, number: int, limit: int = 100) -> list[FailureToRetry]:
    """The failed changes that are to be tried again now."""
    rows = await executor.fetch("select * from headrace_internal.capture_failures_to_retry($1, $2)", number, limit)
    return [FailureToRetry(**dict(row)) for row in rows]


async def record_failed_retries(executor: Executor, number: int, ids: Sequence[int], errors: Sequence[str]) -> None:
    """Record that failed changes failed again."""
    await executor.fetchval("select headrace_internal.record_repeated_failures($1, $2, $3)", number, ids, errors)
