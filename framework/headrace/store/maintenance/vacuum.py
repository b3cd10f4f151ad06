"""Vacuum the tables that have more dead rows than live ones. See `sql/functions/upkeep.sql`."""

from __future__ import annotations

from time import monotonic

from headrace.store.database.errors import translated
from headrace.store.database.pool import Database

AGAIN = 1.0, 60.0
"""Bounds of the seconds between two vacuums of a table. They grow while an old snapshot keeps the dead rows."""

TIMEOUT = 600.0
"""The timeout of one vacuum in seconds."""


class Vacuum:
    """Vacuums tables. Remembers the tables for which a vacuum was useless."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._again_at: dict[str, tuple[float, float]] = {}  # earliest time of the next vacuum, current pause

    async def run(self) -> list[str]:
        """Vacuum the tables that have more dead rows than live ones. Returns their names. Raises `StoreUnavailable`."""
        vacuumed = []
        for relation, dead in await self._database.fetch("select * from headrace.tables_to_vacuum()"):
            not_before, pause = self._again_at.get(relation, (0.0, 0.0))
            if monotonic() < not_before:
                continue
            await self._vacuum(relation)
            vacuumed.append(relation)
            left: int = await self._database.fetchval(
                "select coalesce(max(dead), 0) from headrace.tables_to_vacuum() where relation = $1", relation
            )
            pause = min(max(2 * pause, AGAIN[0]), AGAIN[1]) if left > dead / 2 else AGAIN[0]
            self._again_at[relation] = (monotonic() + pause, pause)
        return vacuumed

    async def _vacuum(self, relation: str) -> None:
        """Vacuum a table on a separate connection, because VACUUM can't run in a transaction and needs a
        longer timeout.
        """
        with translated(self._database.dsn):
            connection = await self._database.connect()
            try:
                # Truncating the file would need an exclusive lock.
                await connection.execute(
                    f"vacuum (index_cleanup on, truncate off, skip_locked on) {relation}", timeout=TIMEOUT
                )
            finally:
                connection.terminate()
