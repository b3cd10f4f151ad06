"""glance: the state of all sources and of the current backfills in one query, for callers that poll."""

from __future__ import annotations

import msgspec

from headrace.model.capture import BackfillInfo
from headrace.model.sources import SourceInfo
from headrace.store.catalog.sources import without_secrets
from headrace.store.database.database import Executor

MAX_SOURCES = 1000
"""The maximum number of backfills in the result."""


async def sources_at_work(executor: Executor) -> tuple[list[SourceInfo], list[BackfillInfo]]:
    """All sources, by name and without secrets, and the queued and running backfills, the oldest first. Uses
    one query.
    """
    row = await executor.fetchrow("select * from headrace_internal.sources_at_work($1)", MAX_SOURCES)
    sources = msgspec.json.decode(row["sources"], type=list[SourceInfo])
    return [without_secrets(one) for one in sources], msgspec.json.decode(row["backfills"], type=list[BackfillInfo])
