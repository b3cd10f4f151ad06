"""The temporary directory of a test run, in memory if there is enough. Databases are created and dropped thousands of
times, and a disk would take most of the run for that.

`TMPDIR` selects another directory. The files that pytest keeps of the last runs then stay there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
NEEDED = 6 << 30
"""Free bytes that the directory must have. A run uses less than half of them."""

_PREFIX = "headrace-tests-"


def move_to_memory() -> Path | None:
    """Put temporary files of this process and its children in memory. Returns the directory, or None if
    nothing changes.
    """
    if "TMPDIR" in os.environ or not _has_room():
        return None
    _clear_away()
    place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=MEMORY))
    place.chmod(0o1777)  # like /tmp: as root, servers run as another user
    os.environ["TMPDIR"] = str(place)
    tempfile.tempdir = None  # what was set before
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
    """Remove what killed test runs have left."""
    for left in MEMORY.glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).split("-")[0]
        if left.stat().st_uid == os.geteuid() and not Path("/proc", owner).exists():
            shutil.rmtree(left, ignore_errors=True)
