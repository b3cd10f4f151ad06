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

from headrace.server.monitoring.prometheus import Labels

TIMEOUT = 1.0
"""Seconds in which a peer must answer. Otherwise it is left out."""

MAX_SIZE = 16_000_000
"""Largest answer of a peer in bytes."""


class PeerMetrics:
    """One of the processes.

    Args:
        directory: the directory of the sockets.
        number: the number of this process.
        own_metrics: returns its metrics.

    Attributes:
        labels: the labels that distinguish its metrics.
    """

    def __init__(self, directory: Path, number: int, own_metrics: Callable[[], str]) -> None:
        self._directory = directory
        self._socket = directory / str(number)
        self._own_metrics = own_metrics
        self.labels = _labels(self._socket)

    async def answer(self) -> None:
        """Answer the peers until cancelled."""
        self._socket.unlink(missing_ok=True)  # left by a killed process with this number
        server = await asyncio.start_unix_server(self._answer, self._socket)
        try:
            await anyio.sleep_forever()
        finally:
            server.close()

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(self._own_metrics().encode())
            await writer.drain()
        except OSError:
            pass  # the peer has disconnected
        finally:
            writer.close()

    async def ask(self) -> Sequence[tuple[str, Labels]]:
        """Return the metrics of the peers with their labels. A peer that doesn't answer is
        starting or has just died, and is left out."""
        others = [path for path in sorted(self._directory.iterdir()) if path != self._socket]
        answers = await asyncio.gather(*map(_ask, others))
        return [(text, _labels(path)) for path, text in zip(others, answers, strict=True) if text is not None]


async def _ask(path: Path) -> str | None:
    with anyio.move_on_after(TIMEOUT):
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
    while sum(map(len, pieces)) < MAX_SIZE and (piece := await reader.read(65_536)):
        pieces.append(piece)
    return b"".join(pieces)


def _labels(path: Path) -> Labels:
    return (("process", path.name),)
