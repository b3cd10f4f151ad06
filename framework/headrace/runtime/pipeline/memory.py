"""Measures the share of its memory that the process uses, relative to the limit of its cgroup or to
the machine's memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_CGROUPS = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self")


def share_in_use(cgroups: Path = _CGROUPS, process: Path = _SELF) -> float | None:
    """Return the share from 0 to 1, or None if it is unknown. Page cache that can be reclaimed at any
    time doesn't count.

    Args:
        cgroups: where the cgroups are mounted.
        process: the process's directory in /proc.
    """
    shares = [used / limit for used, limit in _limited(cgroups, process) if 0 < limit < _physical()]
    if shares:
        return max(shares)
    try:
        pages = int((process / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / _physical()


def _physical() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _limited(cgroups: Path, process: Path) -> Iterator[tuple[int, int]]:
    """Yield the usage and limit of each cgroup of the process, up to the root, of cgroup version 2 or 1."""
    for place in _places(cgroups, process):
        for usage, limit, inactive in (
            ("memory.current", "memory.max", "inactive_file"),
            ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"),
        ):
            try:
                most = int((place / limit).read_text())  # "max" is no limit
                used = int((place / usage).read_text())
                stat = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
                yield used - int(stat.get(inactive, 0)), most
            except (OSError, ValueError):
                continue


def _places(cgroups: Path, process: Path) -> Iterator[Path]:
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            root, inner = cgroups / controllers, PurePosixPath(path)
            # Inside a container the path may be that of the host, while the container's own cgroup
            # is the root.
            for step in (inner, *inner.parents):
                yield root / step.relative_to("/")
