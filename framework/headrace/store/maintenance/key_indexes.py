"""Calls that make or drop indexes of keys. See `sql/functions/maintenance/key_indexes.sql`."""

from __future__ import annotations

from headrace.store.connections.statements import LONG_STATEMENT
from headrace.store.database.database import Database
from headrace.store.database.errors import translated

TIMEOUT = 3600.0
"""The timeout of making one index in seconds."""

SMALL = 16 * 1024 * 1024
"""The size in bytes up to which a segment is indexed while it is being written. Publishers wait for that moment. A larger
one is closed before."""

LOCK_TIMEOUT = 50
"""Milliseconds for which publishers may be held up by the wait for a segment's lock."""


async def adjust_key_indexes(database: Database, *, small: int = SMALL, steps: int = 1000) -> bool:
    """Make or drop indexes of keys, where the setting of a stream was changed, until locks prevent it.

    Args:
        small: as `SMALL`.
        steps: the most indexes that are made or dropped.

    Returns:
        Whether there is more to do.
    """
    while more := bool(await database.fetchval("select headrace_internal.has_key_index_to_adjust()")):
        steps -= 1
        if steps < 0 or await _adjust(database, small):
            break
    return more


async def _adjust(database: Database, small: int) -> bool:
    """Do one step on a separate connection, since it may take longer than other calls. Returns whether locks prevented it."""
    with translated(database.dsn):
        connection = await database.connect()
        try:
            if not database.pooled:  # a setting of the role may be shorter than it takes
                await connection.execute(LONG_STATEMENT)
            query = "select headrace_internal.adjust_key_index($1, $2)"
            return bool(await connection.fetchval(query, LOCK_TIMEOUT, small, timeout=TIMEOUT))
        finally:
            connection.terminate()
