"""Processes that share a port: whoever is asked for metrics asks the others, too, since the kernel chose him, and the next time it is another.

Each of them has a Unix socket in a directory that their parent made, and says there what it has to tell to whoever connects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio

from headrace.server.metrics import Labels

PATIENCE = 1.0
"""Seconds in which another must have answered; otherwise it is left out."""

LARGEST = 16_000_000
"""Bytes that another may tell."""


class Siblings:
    """One of the processes.

    Args:
        directory: where their sockets are.
        number: of this process.
        tell: what it has to tell.

    Attributes:
        labels: what sets its metrics apart.
    """

    def __init__(self, directory: Path, number: int, tell: Callable[[], str]) -> None:
        self._directory = directory
        self._own = directory / str(number)
        self._tell = tell
        self.labels = _labels(self._own)

    async def answer(self) -> None:
        """Answer the others until cancelled."""
        self._own.unlink(missing_ok=True)  # of one that was killed, whose place this is
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
            pass  # it has stopped listening
        finally:
            writer.close()

    async def ask(self) -> Sequence[tuple[str, Labels]]:
        """What the others tell, and what sets each apart. Who does not answer is left out: it starts, or has just died."""
        others = [path for path in sorted(self._directory.iterdir()) if path != self._own]
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
