"""Runs: benchmarks with arguments, each measured by a process of its own on a server of its own."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.figures.results import ROOT
from benchmarks.suite import SUITE

ARGUMENTS = {
    "peers_schedules": ("peers", "--schedules"),
    "pinned": ("pinned", "--seconds", "120"),
    "publish_indexed": ("publish", "--index-keys"),
}
"""The runs that are not named as their benchmark, or have other arguments."""

ORDER = (*SUITE, "peers")
"""The benchmarks that pages may quote, in the order of their runs."""

_GRACE = 60.0
"""Seconds within which a benchmark that is interrupted must have removed its server."""


class RunFailed(Exception):
    """A benchmark that gave no result."""


def arguments(run: str) -> tuple[str, ...]:
    """Return the arguments of a run's benchmark."""
    return ARGUMENTS.get(run, (run,))


def command(run: str, options: Sequence[str] = ()) -> str:
    """Return the command line of a run."""
    return shlex.join(("python", "-m", "benchmarks", *arguments(run), *options))


def measure(run: str, options: Sequence[str], timeout: float) -> dict[str, Any]:
    """Run a benchmark, and return its result.

    Args:
        run: its name.
        options: further arguments of it.
        timeout: seconds after which it is ended.

    Raises:
        RunFailed: it has failed, or took longer.
    """
    with TemporaryDirectory() as directory:
        file = Path(directory, "result.json")
        # In a session of its own, since the terminal would send a second interrupt while the first one is handled.
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks", *arguments(run), *options, "--json", str(file)],
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{run} was not done after {timeout:g} s. Give it longer with --timeout.") from None
        finally:
            _end(process)
        if status or not file.exists():
            raise RunFailed(f"{run} failed with status {status}.")
        result: dict[str, Any] = json.loads(file.read_bytes())
        return result


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
