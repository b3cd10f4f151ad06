"""The files in which workers record what they did: one line of JSON for each event, each a single write, so that a kill
leaves no partial line. No fault reaches them, which a table in the database could not promise."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec


class Trace:
    """The file of one process."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def handled(self, key: str, number: int) -> None:
        self._write("handled", time.monotonic(), key, number)

    def refused(self, count: int) -> None:
        """Acks that the store refused, since their lease was lost."""
        self._write("refused", count)

    def _write(self, *event: object) -> None:
        os.write(self._file, json.dumps(event).encode() + b"\n")


class Traces(msgspec.Struct):
    """The records of all processes.

    Attributes:
        handled: times on the monotonic clock, keys and numbers, in the order of these times.
        refused: the number of acks that were refused.
    """

    handled: list[tuple[float, str, int]]
    refused: int


def read(directory: Path) -> Traces:
    """Read the files of all processes."""
    handled: list[tuple[float, str, int]] = []
    refused = 0
    for kind, *rest in _events(directory):
        if kind == "handled":
            handled.append((rest[0], rest[1], rest[2]))
        else:
            refused += rest[0]
    return Traces(sorted(handled), refused)


def _events(directory: Path) -> Iterator[list[Any]]:
    for path in sorted(directory.glob("*.trace")):
        with path.open() as lines:
            yield from map(json.loads, lines)
