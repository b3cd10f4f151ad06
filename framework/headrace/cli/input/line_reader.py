"""Reads numbered lines from a file or a pipe, in bounded chunks, as soon as they arrive."""

from __future__ import annotations

import gzip
import io
import os
import select
import stat
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from headrace.cli.problems import NoInput
from headrace.model.errors import InvalidInput

BLOCK = 256 * 1024
CHUNK_BYTES = 8 * 1024 * 1024
LONGEST_LINE = 128 * 1024 * 1024
STDIN = "-"


class Lines:
    """The remaining lines of an input.

    Args:
        file: the decompressed bytes.
        raw: the same file before decompression.
    """

    def __init__(self, file: io.RawIOBase | gzip.GzipFile, raw: io.FileIO) -> None:
        self.number = 0
        """The number of the last line that was taken. The first line is 1."""
        info = os.fstat(raw.fileno())
        self.total = info.st_size if stat.S_ISREG(info.st_mode) else None
        """The size of `raw` in bytes. None for a pipe, because its size is unknown."""
        self._may_wait = stat.S_ISFIFO(info.st_mode) or stat.S_ISSOCK(info.st_mode) or raw.isatty()
        self._file = file
        self._raw = raw
        self._ready: deque[bytes] = deque()
        self._rest = bytearray()
        self._ended = False
        self._problem: InvalidInput | None = None

    def position(self) -> int:
        """Bytes read from the disk so far. For a compressed file these are compressed bytes. 0 for a pipe."""
        return self._raw.tell() if self.total is not None else 0

    async def skip(self, count: int) -> None:
        """Skip the next `count` lines. Raises `InvalidInput` if there are fewer."""
        for _ in range(count):
            while not self._ready:
                if self._ended:
                    raise self._problem or InvalidInput(
                        f"There are only {self.number} lines, so {count} can't be skipped."
                    )
                await self._more()
            self._next()

    async def take(self, most: int) -> list[tuple[int, bytes]]:
        """Return the next lines with their numbers: at least one, at most `most`. Returns none at the
        end.

        If a pipe has no more data for now, the lines that have arrived are returned without waiting.
        Raises `InvalidInput` when no more can be read, after all readable lines have been taken.
        """
        taken: list[tuple[int, bytes]] = []
        size = 0
        while len(taken) < most and size < CHUNK_BYTES:
            if self._ready:
                taken.append(self._next())
                size += len(taken[-1][1])
            elif self._ended or (taken and self._would_wait()):
                break
            else:
                await self._more()
        if not taken and self._problem:
            raise self._problem
        return taken

    def _next(self) -> tuple[int, bytes]:
        self.number += 1
        return self.number, self._ready.popleft()

    def _would_wait(self) -> bool:
        return self._may_wait and not select.select([self._raw], [], [], 0)[0]

    async def _more(self) -> None:
        """Read a block. Waiting for a pipe can be cancelled. A file on the disk is read at once."""
        if self._may_wait:
            await anyio.wait_readable(self._raw)
        self._read()

    def _read(self) -> None:
        try:
            block = self._file.read(BLOCK) or b""
        except (OSError, EOFError, zlib.error) as error:
            self._break(f"the input can't be read: {error}.")
            return
        first, *others = block.split(b"\n")
        self._rest += first
        if others:
            self._ready.append(bytes(self._rest))
            self._ready.extend(others[:-1])
            self._rest = bytearray(others[-1])
        elif not block:
            self._ended = True
            if self._rest:
                self._ready.append(bytes(self._rest))
        elif len(self._rest) > LONGEST_LINE:
            self._break(f"the line is longer than {LONGEST_LINE:,} bytes; each line must be one JSON object.")

    def _break(self, reason: str) -> None:
        # Called only when every whole line has been taken.
        self._ended = True
        self._problem = InvalidInput(f"Line {self.number + 1}: {reason}")


@contextmanager
def open_lines(name: str) -> Iterator[Lines]:
    """Open the lines of a file, or of standard input for `-`. A name that ends in `.gz` is
    decompressed.

    Raises:
        NoInput: the file doesn't exist or can't be read.
    """
    with _opened(name) as raw:
        yield Lines(gzip.GzipFile(fileobj=raw) if name.endswith(".gz") else raw, raw)


@contextmanager
def _opened(name: str) -> Iterator[io.FileIO]:
    # Unbuffered. A read returns what has arrived in a pipe, and `select` reports only data that we have
    # not read yet.
    if name == STDIN:
        with io.FileIO(sys.stdin.fileno(), closefd=False) as file:
            yield file
        return
    try:
        file = io.FileIO(name)
    except OSError as error:
        raise NoInput(f"The file {name!r} can't be read: {error.strerror}.") from error
    with file:
        yield file
