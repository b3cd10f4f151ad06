"""The fate of the messages of a run: lost, doubled, out of order. Plain computation."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from benchmarks.peers.process.messages import key_of


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A handler that began or, with the complement of the number, one that ended. Times are in nanoseconds."""

    at: int
    number: int
    published: int


class Verdict(msgspec.Struct, frozen=True):
    """Numbers of messages.

    Attributes:
        handled: different messages whose handler began.
        lost: published, and never handled.
        doubled: handled more than once.
        disordered: handled for the first time before an earlier message of their key had ended.
    """

    handled: int
    lost: int
    doubled: int
    disordered: int


def entries(files: Iterable[Path]) -> list[Entry]:
    """The observations of the processes of one reader, in the order of time."""
    every: list[Entry] = []
    for file in files:
        numbers = array("q")
        numbers.frombytes(file.read_bytes())
        every += map(Entry, numbers[1::3], numbers[0::3], numbers[2::3])
    every.sort(key=lambda entry: entry.at)
    return every


def judge(observed: Sequence[Entry], published: int, keys: int) -> Verdict:
    """Judge one reader.

    Args:
        observed: in the order of time.
        published: messages are numbered from 0 to below this.
        keys: how many keys there are.
    """
    ended = {~entry.number for entry in observed if entry.number < 0}
    times = bytearray(published)
    last: dict[int, int] = {}
    running: dict[int, int] = {}
    disordered = 0
    for entry in observed:
        number = entry.number if entry.number >= 0 else ~entry.number
        key = key_of(number, keys)
        if entry.number < 0:
            if running.get(key) == number:
                del running[key]
            continue
        if not times[number]:
            disordered += number < last.get(key, -1) or key in running
            last[key] = max(number, last.get(key, -1))
            if number in ended:
                running[key] = number
        times[number] = min(2, times[number] + 1)
    return Verdict(published - times.count(0), times.count(0), times.count(2), disordered)
