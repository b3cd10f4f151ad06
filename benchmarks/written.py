"""The writes of a database: bytes of WAL, commits, and dead rows."""

from __future__ import annotations

import msgspec

from headrace.store import Database

_WRITTEN = """
    select pg_current_wal_insert_lsn() - '0/0' as wal_bytes,
           (select xact_commit from pg_stat_database where datname = current_database()) as commits,
           (select sum(n_tup_upd + n_tup_del) from pg_stat_all_tables where schemaname like 'headrace%') as dead_rows"""

_OWN_COMMITS = 2
"""Commits of a reading."""


class Written(msgspec.Struct, frozen=True):
    """The writes so far. WAL is that of the whole server, which should do nothing else.

    The counts of other connections appear when these are idle or closed.
    """

    wal_bytes: int
    commits: int
    dead_rows: int

    @classmethod
    async def read(cls, database: Database) -> Written:
        await database.fetch("select pg_stat_force_next_flush()")
        (row,) = await database.fetch(_WRITTEN)
        return cls(*map(int, row))

    def each(self, before: Written, count: int) -> dict[str, float]:
        """Return what was written between two readings by each of `count` calls or messages, by name."""
        differences = {name: getattr(self, name) - getattr(before, name) for name in self.__struct_fields__}
        differences["commits"] -= _OWN_COMMITS
        return {name: difference / count for name, difference in differences.items()}
