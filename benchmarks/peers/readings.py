"""The costs of a run: processor time, WAL, commits, dead rows, size, and the processor time of others."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg

_TICKS = os.sysconf("SC_CLK_TCK")

_WRITTEN = """
    select pg_current_wal_insert_lsn() - '0/0',
           (select xact_commit from pg_stat_database where datname = current_database()),
           (select coalesce(sum(n_tup_upd + n_tup_del), 0) from pg_stat_user_tables),
           pg_database_size(current_database())"""


class Reading(msgspec.Struct, frozen=True):
    """Counters at one moment, or their differences. Times are in seconds of processor time."""

    wall: float
    client: float
    server: float
    machine: float
    harness: float

    def since(self, before: Reading) -> Reading:
        return Reading(*(getattr(self, name) - getattr(before, name) for name in self.__struct_fields__))

    @property
    def others(self) -> float:
        """The share of the machine's processor time that other processes took, 0 to 1."""
        cores = os.cpu_count() or 1
        return max(0.0, self.machine - self.client - self.server - self.harness) / (self.wall * cores)


class Written(msgspec.Struct, frozen=True):
    """The bytes that a database's server has written, its commits and dead rows, and the size of the database in bytes."""

    wal_bytes: int
    commits: int
    dead_rows: int
    size: int

    @classmethod
    def read(cls, connection: psycopg.Connection[Any]) -> Written:
        connection.execute("select pg_stat_force_next_flush()")
        row = connection.execute(_WRITTEN).fetchone()
        assert row is not None
        return cls(*map(int, row))

    def since(self, before: Written) -> Written:
        """The differences, without the two commits of a reading."""
        difference = {name: getattr(self, name) - getattr(before, name) for name in self.__struct_fields__}
        return Written(**{**difference, "commits": max(0, difference["commits"] - 2)})


def read(clients: Sequence[int], servers: Sequence[int], besides: Sequence[int]) -> Reading:
    """Read the counters.

    Args:
        clients: process ids of the peer's processes.
        servers: those of the servers of this machine, whose children count, too.
        besides: those of the harness's other processes.
    """
    return Reading(
        time.monotonic(),
        sum(map(_used, clients)),
        sum(map(_used_with_children, servers)),
        _busy(),
        time.process_time() + sum(map(_used, besides)),
    )


def postmaster(connection: psycopg.Connection[Any]) -> int | None:
    """The process id of the server, or None if it runs on another machine."""
    backend = connection.info.backend_pid
    try:
        fields = _stat(backend)
        if b"postgres" not in Path(f"/proc/{backend}/cmdline").read_bytes():
            return None
    except OSError:
        return None
    return int(fields[1])


def _used(process: int) -> float:
    """Seconds of processor time of a process with its threads. 0 if it is gone."""
    try:
        return time.clock_gettime((~process << 3) | 2)  # the kernel's number of the clock of another process
    except OSError:
        return 0.0


def _used_with_children(process: int) -> float:
    """That of a process, of its children, and of those that ended."""
    try:
        fields = _stat(process)
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return 0.0
    ended = (int(fields[13]) + int(fields[14])) / _TICKS
    return _used(process) + ended + sum(_used(int(child)) for child in children)


def _stat(process: int) -> list[str]:
    """The fields of a process from its state on."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _busy() -> float:
    """Seconds of processor time that the machine's processes used, and that its host took away."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return 0.0
    user, nice, system, _, _, interrupts, soft, steal = fields
    return (user + nice + system + interrupts + soft + steal) / _TICKS
