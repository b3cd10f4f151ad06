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


class Meter:
    """CPU time of groups of processes since this was made: of living processes, and of their ended children.

    Args:
        groups: the id of the first process of each group. Its descendants belong to the group. A
            group that is None is left out.
    """

    def __init__(self, **groups: int | None) -> None:
        self._groups = {name: pid for name, pid in groups.items() if pid is not None}
        self._before = _seconds(self._groups)
        self._own = time.process_time()
        self._start = time.monotonic()

    def read(self) -> dict[str, float]:
        """CPU seconds of each group, `client` for this process, and elapsed seconds as `wall`."""
        wall, own = time.monotonic() - self._start, time.process_time() - self._own
        used = {name: seconds - self._before[name] for name, seconds in _seconds(self._groups).items()}
        return {**used, "client": own, "wall": wall}


class _Process(msgspec.Struct, frozen=True):
    name: str
    parent: int
    seconds: float


def _processes() -> dict[int, _Process]:
    """All processes, as Linux reports them."""
    found = {}
    tick = os.sysconf("SC_CLK_TCK")
    for place in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has ended
        fields = rest.split()  # from the third field on, as proc(5) counts them
        found[int(place.name)] = _Process(name, int(fields[1]), sum(map(int, fields[11:15])) / tick)
    return found


def _seconds(groups: dict[str, int]) -> dict[str, float]:
    known = _processes()

    def of(pid: int) -> float:
        mine = known[pid].seconds if pid in known else 0.0
        return mine + sum(of(child) for child, process in known.items() if process.parent == pid)

    return {name: of(first) for name, first in groups.items()}


def postmaster(backend: int) -> int | None:
    """The main process of the Postgres that has this backend. None when it is on another machine."""
    process = _processes().get(backend)
    return process.parent if process is not None and process.name == "postgres" else None


def children(process: int) -> list[int]:
    """The processes that this process has started, as the backends of a postmaster."""
    return [number for number, one in _processes().items() if one.parent == process]
