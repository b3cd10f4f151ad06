"""Where a test run writes: in memory, where there is plenty of it. Databases are made and dropped thousands of times, and a disk takes
most of a run for that.

`TMPDIR` names another place; then what pytest keeps of the last runs stays there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
NEEDED = 6 << 30
"""Bytes that must be free there; a run takes less than half of it."""

_PREFIX = "headrace-tests-"


def move_to_memory() -> Path | None:
    """Have this process and those that it starts make their temporary files in memory. Returns the directory, None if it stays as it is."""
    if "TMPDIR" in os.environ or not _has_room():
        return None
    _clear_away()
    place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=MEMORY))
    place.chmod(0o1777)  # as /tmp: for root, servers run as another user
    os.environ["TMPDIR"] = str(place)
    tempfile.tempdir = None  # what was found before
    return place


def _has_room() -> bool:
    try:
        memory = os.statvfs(MEMORY)
        available = next(
            int(line.split()[1]) * 1024
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration):  # not Linux
        return False
    noexec = memory.f_flag & os.ST_NOEXEC  # tests write programs and run them
    return not noexec and memory.f_bavail * memory.f_frsize >= NEEDED and available >= 2 * NEEDED


def _clear_away() -> None:
    """Remove what killed runs of ours have left."""
    for left in MEMORY.glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).split("-")[0]
        if left.stat().st_uid == os.geteuid() and not Path("/proc", owner).exists():
            shutil.rmtree(left, ignore_errors=True)
