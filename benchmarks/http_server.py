"""A server process to measure: start it, wait for it, read its CPU time, stop it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import msgspec

from benchmarks.checks import CheckFailed

_ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 30.0
"""Seconds within which a server must be ready."""

HEADRACE = ["-m", "headrace.cli.main", "serve", "--host", "127.0.0.1", "--log-level", "warning"]
BARE = ["-m", "benchmarks.http_bare"]


class Server(msgspec.Struct, frozen=True):
    """A running server."""

    port: int
    pid: int


@asynccontextmanager
async def serving(command: list[str], *arguments: str) -> AsyncIterator[Server]:
    """Start `python COMMAND --port N ARGUMENTS`, and wait until it reports that it is ready. Stop it at the end."""
    port = _free_port()
    process = await anyio.open_process(
        [sys.executable, *command, "--port", str(port), *arguments],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        await _ready(process, port)
        yield Server(port, process.pid)
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.terminate()
                with anyio.move_on_after(TIMEOUT) as late:
                    await process.wait()
                if late.cancelled_caught:
                    process.kill()
            await process.aclose()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


async def _ready(process: anyio.abc.Process, port: int) -> None:
    end = time.monotonic() + TIMEOUT
    while process.returncode is None and time.monotonic() < end:
        try:
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n")
                if (await stream.receive()).startswith(b"HTTP/1.1 200 "):
                    return
        except (OSError, anyio.EndOfStream):
            pass
        await anyio.sleep(0.05)
    raise CheckFailed(f"The server did not come up: it ended with {process.returncode}.")
