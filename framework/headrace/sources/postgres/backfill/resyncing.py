"""Requests that a stream is made equal to a table."""

from __future__ import annotations

from headrace import store
from headrace.model.capture import BackfillKind
from headrace.sources.postgres.backfill.expecting import unverifiable
from headrace.sources.postgres.backfill.stream_readers import (
    source_of_the_same,
)
from headrace.sources.postgres.spec import PostgresSpec


async def request_resync(
    database: store.Executor, source_id: str, spec: PostgresSpec, table: str, *, is_new: bool = False
) -> str | None:
    """Request that the stream is made equal to a table that is new, or whose rows may have changed without a message.

    The table is compared with the stream. Messages that are missing or differ are published, and rows that are gone get
    tombstones or deletes, in order with the changes that are captured meanwhile. If the stream can't be compared, or the
    table is new, all rows are published.

    Args:
        database: Headrace's database, or a connection inside a transaction, of which the request is a part.
        source_id: the source's id.
        table: one of its tables, by its name in the settings.
        is_new: whether the table is captured for the first time.

    Returns:
        The id of the run that does it: a new one, or one that is queued. None if another one is running that may have
        passed rows before they changed. The caller has to request again later.
    """
    # Without a backfill the stream has only rows that have changed, so it can't show which ones it lacks.
    is_impossible = (
        not spec.backfill
        or unverifiable(spec) is not None
        or await source_of_the_same(database, spec, table) is not None
    )
    kind: BackfillKind = "backfill" if is_new or is_impossible else "repair"
    return await store.request_resync(database, source_id, table, kind, spec.rate)
