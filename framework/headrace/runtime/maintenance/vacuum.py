"""Vacuums the tables that have more dead rows than live ones."""

from __future__ import annotations

from time import monotonic

from headrace import store

MIN_PAUSE, MAX_PAUSE = 1.0, 60.0
"""Bounds of the seconds between two vacuums of a table. They grow while an old snapshot keeps the dead rows."""


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
            await store.vacuum_table(self._database, relation)
            vacuumed.append(relation)
            remaining = await store.dead_rows(self._database, relation)
            pause = min(max(2 * pause, MIN_PAUSE), MAX_PAUSE) if remaining > dead / 2 else MIN_PAUSE
            self._next_at[relation] = (monotonic() + pause, pause)
        return vacuumed
