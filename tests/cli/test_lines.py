"""The line reader returns the same lines with the right numbers, however the input is cut into blocks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.input.line_reader import LineReader, open_lines
from headrace.model.errors import InvalidInput
from tests.support import servers


class _Blocks(io.FileIO):
    """A file that is read in the given blocks."""

    def __init__(self, blocks: list[bytes]) -> None:
        super().__init__("/dev/null")
        self._blocks = iter(blocks)

    def read(self, _size: int | None = -1, /) -> bytes:
        return next(self._blocks, b"")


async def _all(lines: LineReader, most: int) -> list[tuple[int, bytes]]:
    found = []
    while taken := await lines.take(most):
        assert len(taken) <= most
        found += taken
    return found


@given(st.lists(st.text("ab\n", min_size=1).map(str.encode), max_size=20), st.integers(1, 5), st.integers(0, 3))
def test_lines_do_not_depend_on_the_blocks_that_bring_them(blocks: list[bytes], most: int, skip: int) -> None:
    wanted = list(enumerate(b"".join(blocks).removesuffix(b"\n").split(b"\n"), 1)) if blocks else []
    with _Blocks(blocks) as file:
        lines = LineReader(file, file)
        if skip > len(wanted):
            with pytest.raises(InvalidInput, match="only"):
                servers.run(lines.skip(skip))
            return
        servers.run(lines.skip(skip))
        assert servers.run(_all(lines, most)) == wanted[skip:]


def test_a_line_without_end_is_an_error_and_not_all_of_memory() -> None:
    def endless() -> Iterator[bytes]:
        yield b"first\n"
        while True:
            yield b"x" * 60

    blocks: Any = endless()
    with _Blocks(blocks) as file:
        lines = LineReader(file, file, max_line_bytes=100)
        assert servers.run(lines.take(1)) == [(1, b"first")]
        with pytest.raises(InvalidInput, match="Line 2"):
            servers.run(lines.take(10))


def test_the_position_is_that_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"1\n" * 10)
    with open_lines(str(path)) as lines:
        assert lines.total == 20
        servers.run(lines.take(10))
        assert lines.position() == 20
