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
def explained(home: Path) -> Iterator[None]:
    """Turn an `OSError` about the data directory `home` into an `EmbeddedPostgresError`."""
    try:
        yield
    except OSError as error:
        raise EmbeddedPostgresError(_about_files(error, home)) from error


def _about_files(error: OSError, home: Path) -> str:
    if error.errno in _NO_ROOM:
        return disk_full(home)
    where = error.filename2 or error.filename or home
    if error.errno in _NO_WRITING:
        return (
            f"The data directory {home} can't be used ({error.strerror}: {where}): "
            "make it writable for this user, or choose another place with HEADRACE_DATA."
        )
    return (
        f"The data directory {home} can't be used ({error.strerror}: {where}): "
        "choose a directory that can be created and written with HEADRACE_DATA."
    )


def disk_full(home: Path, last_words: str = "") -> str:
    """The message for a full disk. It loses nothing: all commits are on the disk already."""
    said = f" ({last_words})" if last_words else ""
    return (
        f"The disk under {home} is full{said}: free some room (a new database needs about "
        f"{ROOM_FOR_A_CLUSTER}), or choose another place with HEADRACE_DATA."
    )


def port_taken(port: int) -> str:
    """The message for a TCP port on which another program listens."""
    return (
        f"Port {port} on 127.0.0.1 is taken by another program: choose a free one with HEADRACE_PG_PORT, "
        "or leave it unset to use the Unix socket alone."
    )


def about_output(output: str, *, home: Path, port: int | None, doing: str, log: Path | None = None) -> str:
    """The message for the output of a Postgres or initdb that failed.

    `doing` completes "Postgres could not ...". `port` is the requested TCP port, if any.
    """
    words = last_words(output)
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return disk_full(home, words)
    if port is not None and "Address already in use" in output:
        return port_taken(port)
    if "Read-only file system" in output:
        return (
            f"The data directory {home} is on a read-only file system ({words}): "
            "choose another place with HEADRACE_DATA."
        )
    if "pre-existing shared memory block" in output or "is still in use" in output:
        return orphans(home)
    read_on = f" The whole story is in {log}." if log else ""
    return f"Postgres could not {doing}: {words or 'it said nothing'}.{read_on}"


def orphans(home: Path, pids: Sequence[int] = ()) -> str:
    """The message for server processes that outlived their killed postmaster."""
    which = f" ({', '.join(map(str, pids))})" if pids else ""
    return (
        f"Processes of a Postgres that was killed still run on {home}{which}: wait until their queries end, "
        "or end them, and try again."
    )


def last_words(output: str) -> str:
    """The line of a log that best explains why it ended: the last error, or else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    graver = [line for line in lines if any(sign in line for sign in ("FATAL:", "PANIC:", "error:"))]
    line = (graver or lines or [""])[-1]
    if line.endswith("contains errors"):  # the line before it says which errors
        line = lines[max(lines.index(line) - 1, 0)]
    for sign in ("FATAL:", "PANIC:", "LOG:"):
        line = line.partition(sign)[2].strip() or line
    return line.rstrip(".")
