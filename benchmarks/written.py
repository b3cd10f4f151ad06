"""The writes of a database: bytes of WAL, commits, and dead rows."""

from __future__ import annotations

from typing import Self

import msgspec

from headrace.store import Database

COLUMNS = """pg_current_wal_insert_lsn() - '0/0',
    (select xact_commit from pg_stat_database where datname = current_database()),
    (select coalesce(sum(n_tup_upd + n_tup_del), 0) from pg_stat_user_tables)"""
"""The fields of `Written`, as columns of a query without tables."""

FLUSH = "select pg_stat_force_next_flush()"
"""Runs before that query, in a transaction of its own."""

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
    async def read(cls, database: Database) -> Self:
        await database.fetch(FLUSH)
        (row,) = await database.fetch(f"select {COLUMNS}")
        return cls(*map(int, row))

    def since(self, before: Self) -> Self:
        """Return what was written between two readings, without the commits of a reading."""
        differences = {name: getattr(self, name) - getattr(before, name) for name in self.__struct_fields__}
        differences["commits"] = max(0, differences["commits"] - _OWN_COMMITS)
        return type(self)(**differences)

    def each(self, before: Self, count: int) -> dict[str, float]:
        """Return what was written between two readings by each of `count` calls or messages, by name."""
        return {name: difference / count for name, difference in msgspec.structs.asdict(self.since(before)).items()}
