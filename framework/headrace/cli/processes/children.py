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
from typing import Any

import anyio
import anyio.abc

from headrace.app.settings import Settings
from headrace.cli.processes.child_info import ChildInfo
from headrace.runtime.stop_signals import LAST, REPORT_TIMEOUT

KILL_DELAY = REPORT_TIMEOUT + 1.0
"""Seconds after the third signal before processes that it did not end are killed."""


@contextmanager
def parent_pipe() -> Iterator[int]:
    """Open a pipe and yield its reading end. Only this process holds the writing end."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def child_command(settings: Settings, *words: str) -> Sequence[str]:
    """Return the command line of a child process. The child gets the log settings of its parent."""
    logs = ("--log-level", settings.log_level, "--log-format", settings.log_format)
    return (sys.executable, "-m", "headrace.cli.main", *words, *logs)


async def start_child(command: Sequence[str], child: ChildInfo) -> anyio.abc.Process:
    """Start a child process."""
    return await anyio.open_process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=None,
        stderr=None,
        env=child.environment(),
        pass_fds=[fd for fd in (child.parent_fd, child.listen_fd) if fd is not None],
        start_new_session=True,
    )


def send_signal(process: anyio.abc.Process, number: signal.Signals) -> None:
    """Send a signal, unless the process has ended."""
    if process.returncode is None:
        process.send_signal(number)


def forwarded_signal(count: int) -> signal.Signals:
    """Return the signal for the children when their parent has received `count` signals.

    The third one ends them, see `on_stop_signals`. A signal differs from the one before, because two signals of the same kind
    may be merged before they are delivered.
    """
    return {1: signal.SIGTERM, 2: signal.SIGINT, LAST: signal.SIGTERM}.get(count, signal.SIGKILL)


def exit_fields(code: int) -> dict[str, Any]:
    """Return how a process ended, as fields of a log record: `exit_code` or `signal`."""
    if code >= 0:
        return {"exit_code": code}
    try:
        return {"signal": signal.Signals(-code).name}
    except ValueError:
        return {"signal": str(-code)}


def shell_exit_code(code: int) -> int:
    """Return the exit code to use after a process ended with `code`. For a signal it is 128 + the signal, the
    convention of shells.
    """
    return code if code >= 0 else 128 - code
