"""Child processes of a `headrace run` or `serve`: each is one of its own, in a session of its own, so that a terminal's Ctrl-C reaches
it once, by way of the parent.
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
from headrace.cli.member import Member


@contextmanager
def lifeline() -> Iterator[int]:
    """The reading end of a pipe whose writing end only this process has."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def command(found: Settings, *words: str) -> Sequence[str]:
    """What starts a child, which does what these words say. It logs as its parent does."""
    logs = ("--log-level", found.log_level, "--log-format", found.log_format)
    return (sys.executable, "-m", "headrace.cli.main", *words, *logs)


async def start(words: Sequence[str], member: Member) -> anyio.abc.Process:
    """Start a child."""
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
    """What a child is told when its parent has got so many signals, and what that is in words.

    The second is another one than the first: two of a kind may become one on their way.
    """
    told = {1: (signal.SIGTERM, "draining; again to stop at once"), 2: (signal.SIGINT, "stopping at once")}
    return told.get(count, (signal.SIGKILL, "killing"))


def described(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def exit_code(code: int) -> int:
    """An exit code for us after a process that ended with `code`: 128 + the signal, as shells have it."""
    return code if code >= 0 else 128 - code
