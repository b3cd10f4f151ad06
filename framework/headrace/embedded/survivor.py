"""A shell beside each user of the server, which outlives it. If the user is killed, it stops a server that no other uses.

The shell waits on a pipe of which only the user holds the other end. A user that leaves says so with a line. The kernel
closes the pipe of one that is killed, and the shell becomes a Python that stops the server as a user that leaves does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from headrace.embedded import locks

# The shell in front ends, so that the one that waits is not our child, and leaves no zombie. A command in the background has
# no standard input, hence the other descriptor.
_WAIT = """trap '' HUP INT TERM; exec 3<&0; { read -r _ <&3 || exec "$@" 3<&-; } &"""

_STOP = """import sys
sys.path.append(sys.argv[2])
from headrace.embedded import EmbeddedPostgres
EmbeddedPostgres(sys.argv[1]).stop_if_unused()"""

_COMMAND = ("/bin/sh", "-c", _WAIT, "sh", sys.executable or "python3", "-P", "-c", _STOP)


def start(data_dir: Path) -> int:
    """Start the shell. Returns the end of the pipe for `dismiss`."""
    reading, writing = os.pipe()
    try:
        subprocess.run(
            [*_COMMAND, data_dir, Path(__file__).parents[2]],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # a terminal's signals must not reach it
            check=False,
        )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    locks.close_in_children(writing)
    return writing


def dismiss(pipe: int) -> None:
    """End the shell: its user leaves by itself."""
    with suppress(OSError):  # it was killed
        os.write(pipe, b"\n")
    locks.close_only(pipe)
