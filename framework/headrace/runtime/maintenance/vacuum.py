"""Vacuums the tables that have more dead rows than live ones."""

from __future__ import annotations

from datetime import datetime
from time import monotonic

import anyio

from headrace import store

MIN_PAUSE, MAX_PAUSE = 1.0, 60.0
"""Bounds of the seconds between two vacuums of a table. They grow while an old snapshot keeps the dead rows."""

LOOKS, LOOKS_INTERVAL = 20, 0.1
"""How often the statistics are looked at after a vacuum, and the seconds between two looks. From PostgreSQL 15 on
they are current at once.
"""


class Vacuum:
    """Vacuums tables. Remembers the tables for which a vacuum was useless."""

    def __init__(self, database: store.Database) -> None:
        self._database = database
        self._next_at: dict[str, tuple[float, float]] = {}  # earliest time of the next vacuum, current pause

    async def run(self) -> list[str]:
        """Vacuum the tables that have more dead rows than live ones. Returns their names. Raises `StoreUnavailable`."""
        vacuumed = []
        for relation, dead in (await store.tables_to_vacuum(self._database)).items():
            not_before, pause = self._next_at.get(relation, (0.0, 0.0))
            if monotonic() < not_before:
                continue
            begun = await store.vacuum_table(self._database, relation)
            vacuumed.append(relation)
            await self._wait_for_statistics(relation, begun)
            remaining = await store.dead_rows(self._database, relation)
            pause = min(max(2 * pause, MIN_PAUSE), MAX_PAUSE) if remaining > dead / 2 else MIN_PAUSE
            self._next_at[relation] = (monotonic() + pause, pause)
        return vacuumed

    async def _wait_for_statistics(self, relation: str, begun: datetime) -> None:
        """Wait until the dead rows are counted again. Older numbers would make a vacuum seem useless.

        A vacuum that found the table locked has done nothing, and is never counted.
        """
        for _ in range(LOOKS):
            if await store.is_in_statistics(self._database, relation, begun):
                return
            await anyio.sleep(LOOKS_INTERVAL)
