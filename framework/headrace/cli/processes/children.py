"""Child processes of `headrace run` or `serve`. Each has its own session, so that a terminal's Ctrl-C
reaches it only once, through the parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import anyio
import anyio.abc

from headrace.app.settings import Settings
from headrace.cli.processes.member import Member


@contextmanager
def lifeline() -> Iterator[int]:
    """The reading end of a pipe. Only this process holds the writing end."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def command(found: Settings, *words: str) -> Sequence[str]:
    """The command line of a child with these words. The child gets the log settings of its parent."""
    logs = ("--log-level", found.log_level, "--log-format", found.log_format)
    return (sys.executable, "-m", "headrace.cli.main", *words, *logs)


async def start(words: Sequence[str], member: Member) -> anyio.abc.Process:
    """Start a child process."""
    return await anyio.open_process(
        words,
        stdin=subprocess.DEVNULL,
        stdout=None,
        stderr=None,
        env=member.environment(),
        pass_fds=[fd for fd in (member.parent_fd, member.listen_fd) if fd is not None],
        start_new_session=True,
    )


def tell(process: anyio.abc.Process, number: signal.Signals) -> None:
    """Send a signal, unless the process has ended."""
    if process.returncode is None:
        process.send_signal(number)


def passed_on(count: int) -> tuple[signal.Signals, str]:
    """The signal for a child when its parent has received `count` signals, and a description of its
    effect.

    The second signal differs from the first, because two signals of the same kind may be merged before
    they are delivered.
    """
    told = {1: (signal.SIGTERM, "draining; again to stop at once"), 2: (signal.SIGINT, "stopping at once")}
    return told.get(count, (signal.SIGKILL, "killing"))


def described(code: int) -> str:
    """Describe in words how a process ended."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def exit_code(code: int) -> int:
    """The exit code to use after a process ended with `code`. For a signal it is 128 + the signal, the
    convention of shells.
    """
    return code if code >= 0 else 128 - code
