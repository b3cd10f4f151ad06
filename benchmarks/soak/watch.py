"""Reads what processes and the database hold, as series over time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.soak.judge import Series

_TABLES = """
select pg_catalog.format('%s.%s', n.nspname, root.relname) as name,
       sum(pg_table_size(c.oid))::float8 as bytes, sum(pg_indexes_size(c.oid))::float8 as index_bytes,
       coalesce(sum(s.n_dead_tup), 0)::float8 as dead, count(*)::float8 as relations
  from pg_class c
  join pg_class root on root.oid = coalesce(pg_partition_root(c.oid), c.oid)
  join pg_namespace n on n.oid = root.relnamespace
  left join pg_stat_user_tables s on s.relid = c.oid
 where c.relkind in ('r', 'p') and n.nspname in ('headrace_internal', 'headrace_streams')
 group by 1
"""

_BACKENDS = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"

_SLOTS = "select slot_name, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8 as wal from pg_replication_slots"


class Watch:
    """Gathers samples.

    Attributes:
        series: all series so far, by name and kind.
    """

    def __init__(self, processes: Mapping[str, int], connection: asyncpg.Connection[Any]) -> None:
        """`processes` are process ids by name."""
        self._processes = processes
        self._connection = connection
        self._start = time.monotonic()
        self.series: dict[tuple[str, str], Series] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    async def look(self) -> None:
        """Take one sample of everything."""
        for name, pid in self._processes.items():
            status = _status(pid)
            self._note(name, "memory", status["VmRSS"] * 1024)
            self._note(name, "threads", status["Threads"])
            self._note(name, "files", len(os.listdir(f"/proc/{pid}/fd")))
        for row in await self._connection.fetch(_TABLES):
            for kind, column in (("table", "bytes"), ("index", "index_bytes"), ("dead rows", "dead")):
                self._note(row["name"], kind, row[column])
            self._note(row["name"], "relations", row["relations"])
        for row in await self._connection.fetch(_SLOTS):
            self._note(row["slot_name"], "wal", row["wal"])
        backends = [row["pid"] for row in await self._connection.fetch(_BACKENDS)]
        self._note("postgres", "connections", len(backends))
        local = [status for pid in backends if "RssAnon" in (status := _status(pid))]
        if local:  # the server runs on this machine
            self._note("a session of postgres", "memory", sum(one["RssAnon"] for one in local) * 1024 / len(local))

    def note_lag(self, name: str, lag: int) -> None:
        """Take a sample of how far a consumer is behind."""
        self._note(name, "lag", lag)

    def _note(self, name: str, kind: str, value: float) -> None:
        series = self.series.setdefault((name, kind), Series(name, kind))
        series.samples.append((round(self.seconds, 3), value))


def _status(pid: int) -> dict[str, int]:
    """The numbers in a process's status. Empty if it has ended, or runs elsewhere."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: int(value.split()[0]) for name, _, value in pairs if value.split() and value.split()[0].isdigit()}
