"""Calls for vacuuming the tables that have more dead rows than live ones. See `sql/functions/upkeep.sql`."""

from __future__ import annotations

from headrace.store.database.errors import translated
from headrace.store.database.pool import Database, Executor

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


async def vacuum_table(database: Database, relation: str) -> None:
    """Vacuum a table on a separate connection, because VACUUM can't run in a transaction and needs a longer timeout."""
    with translated(database.dsn):
        connection = await database.connect()
        try:
            # Truncating the file would need an exclusive lock.
            await connection.execute(
                f"vacuum (index_cleanup on, truncate off, skip_locked on) {relation}", timeout=TIMEOUT
            )
        finally:
            connection.terminate()
