"""Metrics of processes that share a port. The kernel picks one process per connection, so it
aggregates the metrics of its peers.

Each process has a Unix socket in a directory that the parent process made. It writes its metrics to
every connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio

from headrace.server.monitoring.metrics import Labels

PATIENCE = 1.0
"""Seconds in which a peer must answer. Otherwise it is left out."""

LARGEST = 16_000_000
"""Largest answer of a peer in bytes."""


class PeerMetrics:
    """One of the processes.

    Args:
        directory: the directory of the sockets.
        number: the number of this process.
        tell: returns its metrics.

    Attributes:
        labels: the labels that distinguish its metrics.
    """

    def __init__(self, directory: Path, number: int, tell: Callable[[], str]) -> None:
        self._registry = directory
        self._own = directory / str(number)
        self._tell = tell
        self.labels = _labels(self._own)

    async def answer(self) -> None:
        """Answer the peers until cancelled."""
        self._own.unlink(missing_ok=True)  # left by a killed process with this number
        server = await asyncio.start_unix_server(self._answer, self._own)
        try:
            await anyio.sleep_forever()
        finally:
            server.close()

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(self._tell().encode())
            await writer.drain()
        except OSError:
            pass  # the peer has disconnected
        finally:
            writer.close()

    async def ask(self) -> Sequence[tuple[str, Labels]]:
        """Return the metrics of the peers with their labels. A peer that doesn't answer is
        starting or has just died, and is left out."""
        others = [path for path in sorted(self._registry.iterdir()) if path != self._own]
        told = await asyncio.gather(*map(_ask, others))
        return [(text, _labels(path)) for path, text in zip(others, told, strict=True) if text is not None]


async def _ask(path: Path) -> str | None:
    with anyio.move_on_after(PATIENCE):
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError:
            return None
        try:
            return (await _all(reader)).decode()
        except OSError:
            return None
        finally:
            writer.close()
    return None


async def _all(reader: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < LARGEST and (piece := await reader.read(65_536)):
        pieces.append(piece)
    return b"".join(pieces)


def _labels(path: Path) -> Labels:
    return (("process", path.name),)
