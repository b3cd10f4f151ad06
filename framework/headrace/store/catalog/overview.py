"""glance: the state of all sources and of the current backfills in one query, for callers that poll."""

from __future__ import annotations

import msgspec

from headrace.model.capture import BackfillInfo
from headrace.model.sources import SourceInfo
from headrace.store.catalog.sources import without_secrets
from headrace.store.database.pool import Executor

_AT_WORK = """
    select (select coalesce(json_agg(s), '[]') from headrace_internal.source_info() as s) as sources,
           (select coalesce(json_agg(b), '[]') from (
               select b.uid as id, o.name as source, b.relation as "table", b.condition as "where", b.rate, b.state, b.reason, b.total,
                      b.read, b.published, b.created_at, b.started_at, b.updated_at, b.finished_at
               from headrace_internal.backfills as b join headrace_internal.sources as o on o.id = b.source_id
               where b.state in ('queued', 'running') order by b.id limit $1) as b) as backfills
"""

MAX_SOURCES = 1000
"""The maximum number of backfills in the result."""


async def sources_at_work(executor: Executor) -> tuple[list[SourceInfo], list[BackfillInfo]]:
    """All sources, by name and without secrets, and the queued and running backfills, the oldest first. Uses
    one query.
    """
    row = await executor.fetchrow(_AT_WORK, MAX_SOURCES)
    sources = msgspec.json.decode(row["sources"], type=list[SourceInfo])
    return [without_secrets(one) for one in sources], msgspec.json.decode(row["backfills"], type=list[BackfillInfo])
