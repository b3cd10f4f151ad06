"""Error messages of the embedded Postgres, each one sentence that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.model.errors import EmbeddedPostgresError

ROOM_FOR_A_CLUSTER = "100 MB"

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NO_WRITING = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def os_errors_explained(home: Path) -> Iterator[None]:
    """Turn an `OSError` about the data directory `home` into an `EmbeddedPostgresError`."""
    try:
        yield
    except OSError as error:
        raise EmbeddedPostgresError(_about_files(error, home)) from error


def _about_files(error: OSError, home: Path) -> str:
    if error.errno in _NO_ROOM:
        return disk_full_error(home)
    where = error.filename2 or error.filename or home
    if error.errno in _NO_WRITING:
        return (
            f"The data directory {home} can't be used ({error.strerror}: {where}). "
            "Make it writable for this user, or choose another directory with HEADRACE_DATA."
        )
    return (
        f"The data directory {home} can't be used ({error.strerror}: {where}). "
        "Set HEADRACE_DATA to a directory that can be created and written."
    )


def disk_full_error(home: Path, last_error_line: str = "") -> str:
    """The message for a full disk. It loses nothing: all commits are on the disk already."""
    detail = f" ({last_error_line})" if last_error_line else ""
    return (
        f"The disk of {home} is full{detail}. Free some space (a new database needs about "
        f"{ROOM_FOR_A_CLUSTER}), or choose another directory with HEADRACE_DATA."
    )


def port_taken_error(port: int) -> str:
    """The message for a TCP port on which another program listens."""
    return (
        f"Port {port} on 127.0.0.1 is used by another program. Choose a free one with HEADRACE_PG_PORT, "
        "or leave it unset to use only the Unix socket."
    )


def output_error(output: str, *, home: Path, port: int | None, action: str, log: Path | None = None) -> str:
    """The message for the output of a Postgres or initdb that failed.

    `action` completes "Postgres could not ...". `port` is the requested TCP port, if any.
    """
    reason = last_error_line(output)
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return disk_full_error(home, reason)
    if port is not None and "Address already in use" in output:
        return port_taken_error(port)
    if "Read-only file system" in output:
        return (
            f"The data directory {home} is on a read-only file system ({reason}). "
            "Choose another directory with HEADRACE_DATA."
        )
    if "pre-existing shared memory block" in output or "is still in use" in output:
        return orphans_error(home)
    log_hint = f" The log is in {log}." if log else ""
    return f"Postgres could not {action}: {reason or 'no reason is given'}.{log_hint}"


def orphans_error(home: Path, pids: Sequence[int] = ()) -> str:
    """The message for server processes that outlived their killed postmaster."""
    ids = f" ({', '.join(map(str, pids))})" if pids else ""
    return (
        f"Processes of a killed Postgres still run on {home}{ids}. Wait until their queries end, "
        "or end them, and try again."
    )


def last_error_line(output: str) -> str:
    """The line of a log that best explains why it ended: the last error, or else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    severe_lines = [line for line in lines if any(sign in line for sign in ("FATAL:", "PANIC:", "error:"))]
    line = (severe_lines or lines or [""])[-1]
    if line.endswith("contains errors"):  # the line before it says which errors
        line = lines[max(lines.index(line) - 1, 0)]
    for sign in ("FATAL:", "PANIC:", "LOG:"):
        line = line.partition(sign)[2].strip() or line
    return line.rstrip(".")
