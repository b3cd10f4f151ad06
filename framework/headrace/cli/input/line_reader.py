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

from headrace.cli.errors import UnreadableInput
from headrace.model.errors import InvalidInput

BLOCK_SIZE = 256 * 1024
"""Bytes read at a time."""

CHUNK_BYTES = 8 * 1024 * 1024
"""Maximum size of the lines that `take` returns together."""

MAX_LINE_BYTES = 128 * 1024 * 1024
"""Maximum length of a line."""

STDIN = "-"
"""The name of standard input."""


class LineReader:
    """The remaining lines of an input.

    Args:
        file: the decompressed bytes.
        raw: the same file before decompression.
        max_line_bytes: maximum length of a line.
    """

    def __init__(
        self, file: io.RawIOBase | gzip.GzipFile, raw: io.FileIO, max_line_bytes: int = MAX_LINE_BYTES
    ) -> None:
        self.number = 0
        """The number of the last line that was taken. The first line is 1."""
        info = os.fstat(raw.fileno())
        self.total = info.st_size if stat.S_ISREG(info.st_mode) else None
        """The size of `raw` in bytes. None for a pipe, because its size is unknown."""
        self._is_pipe = stat.S_ISFIFO(info.st_mode) or stat.S_ISSOCK(info.st_mode) or raw.isatty()
        self._file = file
        self._raw = raw
        self._max_line_bytes = max_line_bytes
        self._complete_lines: deque[bytes] = deque()
        self._partial_line = bytearray()
        self._ended = False
        self._error: InvalidInput | None = None

    def position(self) -> int:
        """Bytes read from the disk so far. For a compressed file these are compressed bytes. 0 for a pipe."""
        return self._raw.tell() if self.total is not None else 0

    async def skip(self, count: int) -> None:
        """Skip the next `count` lines. Raises `InvalidInput` if there are fewer."""
        for _ in range(count):
            while not self._complete_lines:
                if self._ended:
                    raise self._error or InvalidInput(
                        f"The input has only {self.number} lines, so --skip {count} is too large."
                    )
                await self._read_more()
            self._next()

    async def take(self, limit: int) -> list[tuple[int, bytes]]:
        """Return the next lines with their numbers: at least one, at limit `limit`. Returns none at the
        end.

        If a pipe has no more data for now, the lines that have arrived are returned without waiting.
        Raises `InvalidInput` when no more can be read, after all readable lines have been taken.
        """
        lines: list[tuple[int, bytes]] = []
        size = 0
        while len(lines) < limit and size < CHUNK_BYTES:
            if self._complete_lines:
                lines.append(self._next())
                size += len(lines[-1][1])
            elif self._ended or (lines and self._is_drained()):
                break
            else:
                await self._read_more()
        if not lines and self._error:
            raise self._error
        return lines

    def _next(self) -> tuple[int, bytes]:
        self.number += 1
        return self.number, self._complete_lines.popleft()

    def _is_drained(self) -> bool:
        return self._is_pipe and not select.select([self._raw], [], [], 0)[0]

    async def _read_more(self) -> None:
        """Read a block. Waiting for a pipe can be cancelled. A file on the disk is read directly."""
        if self._is_pipe:
            await anyio.wait_readable(self._raw)
        self._read()

    def _read(self) -> None:
        try:
            block = self._file.read(BLOCK_SIZE) or b""
        except (OSError, EOFError, zlib.error) as error:
            self._fail(f"the input can't be read: {error}.")
            return
        first, *others = block.split(b"\n")
        self._partial_line += first
        if others:
            self._complete_lines.append(bytes(self._partial_line))
            self._complete_lines.extend(others[:-1])
            self._partial_line = bytearray(others[-1])
        elif not block:
            self._ended = True
            if self._partial_line:
                self._complete_lines.append(bytes(self._partial_line))
        elif len(self._partial_line) > self._max_line_bytes:
            self._fail(f"it is longer than {self._max_line_bytes:,} bytes. Each line must be one JSON object.")

    def _fail(self, reason: str) -> None:
        # Called only when every whole line has been taken.
        self._ended = True
        self._error = InvalidInput(f"Line {self.number + 1}: {reason}")


@contextmanager
def open_lines(name: str) -> Iterator[LineReader]:
    """Open the lines of a file, or of standard input for `-`. A file whose name ends in `.gz` is
    decompressed.

    Raises:
        UnreadableInput: the file doesn't exist or can't be read.
    """
    with _open_raw(name) as raw:
        yield LineReader(gzip.GzipFile(fileobj=raw) if name.endswith(".gz") else raw, raw)


@contextmanager
def _open_raw(name: str) -> Iterator[io.FileIO]:
    # Unbuffered. A read returns what has arrived in a pipe, and `select` reports only data that we have
    # not read yet.
    if name == STDIN:
        with io.FileIO(sys.stdin.fileno(), closefd=False) as file:
            yield file
        return
    try:
        file = io.FileIO(name)
    except OSError as error:
        raise UnreadableInput(f"The file {name!r} can't be read: {error.strerror}.") from error
    with file:
        yield file
