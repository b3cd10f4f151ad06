"""Calls for vacuuming the tables that have more dead rows than live ones. See `sql/functions/maintenance/upkeep.sql`."""

from __future__ import annotations

from datetime import datetime

from headrace.store.connections.statements import LONG_STATEMENT
from headrace.store.database.database import Database, Executor
from headrace.store.database.errors import translated

TIMEOUT = 600.0
"""The timeout of one vacuum in seconds."""


async def tables_to_vacuum(executor: Executor) -> dict[str, int]:
    """Return the tables that have more dead rows than live ones, with their numbers of dead rows."""
    return dict(await executor.fetch("select relation, dead from headrace_internal.tables_to_vacuum()"))


async def dead_rows(executor: Executor, relation: str) -> int:
    """Return the number of a table's dead rows, if it has more of them than live ones. Otherwise 0."""
    dead: int = await executor.fetchval(
        "select coalesce(max(dead), 0) from headrace_internal.tables_to_vacuum() where relation = $1", relation
    )
    return dead


async def is_in_statistics(executor: Executor, relation: str, begun: datetime) -> bool:
    """Return whether the server's statistics include the vacuum of a table that began at a time.

    Up to PostgreSQL 14 they are up to half a second old.
    """
    return bool(
        await executor.fetchval(
            "select coalesce(pg_stat_get_last_vacuum_time($1::text::regclass) > $2, false)", relation, begun
        )
    )


async def vacuum_table(database: Database, relation: str) -> datetime:
    """Vacuum a table on a separate connection, because VACUUM can't run in a transaction and needs a longer timeout.

    Returns the server's time at the beginning.
    """
    with translated(database.dsn):
        connection = await database.connect()
        try:
            begun: datetime = await connection.fetchval("select clock_timestamp()")
            if not database.pooled:  # a setting of the role may be shorter than the vacuum takes
                await connection.execute(LONG_STATEMENT)
            # Truncating the file would need an exclusive lock.
            await connection.execute(
                f"vacuum (index_cleanup on, truncate off, skip_locked on) {relation}", timeout=TIMEOUT
            )
        finally:
            connection.terminate()
    return begun
