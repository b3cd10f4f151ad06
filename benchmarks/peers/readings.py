"""The costs of a run: processor time, WAL, commits, dead rows, size, and the processor time of others."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from benchmarks.processor_time import TICKS, busy, children, used
from benchmarks.written import COLUMNS, FLUSH, Written


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


class Stored(Written, frozen=True):
    """The writes of a database so far, and its size in bytes."""

    size: int

    @classmethod
    def of(cls, connection: psycopg.Connection[Any]) -> Stored:
        connection.execute(FLUSH)
        row = connection.execute(f"select {COLUMNS}, pg_database_size(current_database())").fetchone()
        assert row is not None
        return cls(*map(int, row))


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
        busy(),
        time.process_time() + sum(map(_used, besides)),
    )


def _used(process: int) -> float:
    """Seconds of processor time of a process with its threads. 0 if it is gone."""
    try:
        return used(process)
    except OSError:
        return 0.0


def _used_with_children(process: int) -> float:
    """That of a process, of its children, and of those that ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()  # from its state on
    except OSError:
        return 0.0
    ended = (int(fields[13]) + int(fields[14])) / TICKS
    return _used(process) + ended + sum(map(_used, children(process)))
