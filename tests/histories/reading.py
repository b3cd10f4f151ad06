"""Reads the files of a history, line by line, in the order of their clock."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Fields = dict[str, Any]

FORMAT = 1


class Malformed(Exception):
    """A file is no history."""


class Line(NamedTuple):
    """A line of a history.

    Attributes:
        at: the time by which the lines are sorted. It is the time of its clock if there is one clock.
        file: the number of its file.
        number: its number in the file, from 1.
        fields: what it says.
    """

    at: float
    file: int
    number: int
    fields: Fields


class History:
    """The files of a directory.

    Times of one clock can be compared, whichever process wrote them, since processes on one boot of one machine share it.
    Times of different clocks can't. Wall clocks only bring the lines of several clocks into an order in which they can be
    read, and nothing is decided by them.

    Attributes:
        comparable: whether all files have the same clock.
        torn: how many files end with a line that was not written whole.
    """

    def __init__(self, directory: Path) -> None:
        self.files = sorted(directory.glob("*.ndjson"))
        if not self.files:
            raise Malformed(f"{directory} has no file *.ndjson.")
        self.torn = 0
        headers = [_header(file) for file in self.files]
        self.comparable = len({header["clock"] for header in headers if header}) <= 1
        self._shifts = [0.0 if self.comparable or not header else header["wall"] - header["t"] for header in headers]

    def lines(self) -> Iterator[Line]:
        """Yield all lines."""
        self.torn = 0
        return heapq.merge(*(self._of(place) for place in range(len(self.files))))

    def _of(self, place: int) -> Iterator[Line]:
        shift = self._shifts[place]
        with self.files[place].open("rb") as file:
            for number, text in enumerate(file, 1):
                try:
                    fields = json.loads(text)
                except ValueError:
                    if text.endswith(b"\n"):
                        raise Malformed(f"{self.files[place]}:{number} is no JSON: {text[:80]!r}") from None
                    self.torn += 1
                    return
                yield Line(fields["t"] + shift, place, number, fields)


def _header(file: Path) -> Fields:
    """Return the first line. It is empty if the process was killed before the line was whole."""
    with file.open("rb") as opened:
        text = opened.readline()
    if not text.endswith(b"\n"):
        return {}
    try:
        header: Fields = json.loads(text)
        if header["event"] != "process" or header["version"] != FORMAT:
            raise Malformed(f"{file} does not begin with a header of version {FORMAT}.")
    except (ValueError, TypeError, KeyError) as error:
        raise Malformed(f"{file} does not begin with a header: {text[:80]!r}") from error
    return header


def write(file: Path, lines: Iterable[Fields]) -> None:
    """Write a history, such as what a test knows from the database."""
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
