"""Processes that a benchmark starts and controls over their standard input and output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc

_ROOT = Path(__file__).resolve().parents[1]


async def start(module: str, *arguments: str) -> anyio.abc.Process:
    """Start a Python process that runs this module, with the same import path."""
    return await anyio.open_process(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


@asynccontextmanager
async def started(module: str, *arguments: str) -> AsyncIterator[anyio.abc.Process]:
    """Start a Python process as `start` does, and kill it at the end if it still runs."""
    process = await start(module, *arguments)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


def stand_back() -> None:
    """Take only the processor time that nothing else wants. Outside of a benchmark this process would have a machine of its
    own. Here it shares the server's, and the benchmark would measure the kernel's scheduler."""
    os.setsid()  # Linux divides time among sessions first, where the kernel groups processes by them
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19", encoding="ascii")
