"""Processor time: of a process, of groups of processes, and of the machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

TICKS = os.sysconf("SC_CLK_TCK")
"""The units of a second in which Linux counts the time of processes that have ended, and of the machine."""


def used(process: int) -> float:
    """Seconds of a process with its threads, to the nanosecond. Raises `OSError` if it is gone, or on another
    machine."""
    return time.clock_gettime((~process << 3) | 2)  # the kernel's number of the clock of another process


def busy() -> float:
    """Seconds for which the processors of this machine have worked, or their host took them away. 0 if it does not
    tell."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return 0.0
    user, nice, system, _, _, interrupts, soft, steal = fields
    return (user + nice + system + interrupts + soft + steal) / TICKS


class Meter:
    """CPU time of groups of processes since this was made: of living processes, and of their ended children.

    Args:
        groups: the id of the first process of each group. Its descendants belong to the group. A
            group that is None is left out.
    """

    def __init__(self, **groups: int | None) -> None:
        self._groups = {name: pid for name, pid in groups.items() if pid is not None}
        self._before = _seconds(self._groups)
        self._own = time.process_time()
        self._start = time.monotonic()

    def read(self) -> dict[str, float]:
        """CPU seconds of each group, `client` for this process, and elapsed seconds as `wall`."""
        wall, own = time.monotonic() - self._start, time.process_time() - self._own
        used = {name: seconds - self._before[name] for name, seconds in _seconds(self._groups).items()}
        return {**used, "client": own, "wall": wall}


class _Process(msgspec.Struct, frozen=True):
    name: str
    parent: int
    seconds: float


def _processes() -> dict[int, _Process]:
    """All processes, as Linux reports them."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has ended
        fields = rest.split()  # from the third field on, as proc(5) counts them
        found[int(place.name)] = _Process(name, int(fields[1]), sum(map(int, fields[11:15])) / TICKS)
    return found


def _seconds(groups: dict[str, int]) -> dict[str, float]:
    known = _processes()

    def of(pid: int) -> float:
        mine = known[pid].seconds if pid in known else 0.0
        return mine + sum(of(child) for child, process in known.items() if process.parent == pid)

    return {name: of(first) for name, first in groups.items()}


def postmaster(backend: int) -> int | None:
    """The main process of the Postgres that has this backend. None when it is on another machine."""
    process = _processes().get(backend)
    return process.parent if process is not None and process.name == "postgres" else None


def children(process: int) -> list[int]:
    """The processes that this process has started, as the backends of a postmaster."""
    return [number for number, one in _processes().items() if one.parent == process]


def descendants(process: int, name: str) -> list[int]:
    """The processes below this process whose names begin like that."""
    known = _processes()

    def below(pid: int) -> list[int]:
        own = [child for child, one in known.items() if one.parent == pid]
        return own + [other for child in own for other in below(child)]

    return [pid for pid in below(process) if known[pid].name.startswith(name)]
