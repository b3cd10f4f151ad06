"""The clocks of a process, and the times of the server."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, overload

import msgspec

Clock = Callable[[], float]
"""A monotonic clock in seconds."""


def _suspension_clock() -> Clock:
    """Return the monotonic clock that runs on while the machine sleeps, as the leases in the store do. `time.monotonic`
    stands still then, on Linux and on macOS. All processes of the machine share it."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):  # the second one runs on in macOS, which lacks the first
        number = getattr(time, name, None)
        try:
            if number is not None and time.clock_gettime(number) > 0:
                return partial(time.clock_gettime, number)
        except OSError:  # an old kernel, or a sandbox
            continue
    return time.monotonic


suspension_clock: Clock = _suspension_clock()
"""Seconds, monotonic, with the time in which the machine slept. It measures leases."""


class Time(msgspec.Struct, frozen=True):
    """The clocks of a service. A test passes its own.

    Attributes:
        clock: seconds, monotonic, for leases, deadlines, waits and rates in this process.
        now: the time for leases and settles, or None for the time of the database server.
        date: the time that the server gives to messages, as far as this process knows it. Delays of
            scheduled messages count from it.
    """

    clock: Clock = suspension_clock
    now: Callable[[], datetime | None] = lambda: None
    date: Callable[[], datetime] = lambda: datetime.now(UTC)


SYSTEM_TIME = Time()


@overload
def zoned(time: datetime) -> datetime: ...
@overload
def zoned(time: None) -> None: ...
def zoned(time: datetime | None) -> datetime | None:
    """Return a time with its zone. One without a zone is in UTC."""
    return time if time is None or time.tzinfo is not None else time.replace(tzinfo=UTC)


@overload
def utc(time: datetime) -> datetime: ...
@overload
def utc(time: None) -> None: ...
def utc(time: datetime | None) -> datetime | None:
    """Return a time in UTC, see `zoned`. Postgres reads no offset of 16 hours or more, which RFC 3339 allows. A time before
    the year 1 or after the year 9999 there is the first or the last one."""
    if time is None:
        return None
    try:
        return zoned(time).astimezone(UTC)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC) if time.year == 1 else datetime.max.replace(tzinfo=UTC)


POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""From when Postgres counts its microseconds."""


def from_microseconds(microseconds: int) -> datetime:
    """Return the time that Postgres stores as `microseconds`."""
    return POSTGRES_EPOCH + timedelta(microseconds=microseconds)


class Times(Sequence[datetime]):
    """Times as Postgres sends an array of them. Each becomes a `datetime` when it is asked for, which costs more than
    all the rest of reading a message.

    Attributes:
        microseconds: since `POSTGRES_EPOCH`. None for null, which is read as None. They may be filled in.
    """

    __slots__ = ("microseconds",)

    _HEAD = 20  # bytes: number of dimensions, whether there are nulls, type, number of elements, first index
    _VALUE = struct.Struct(">iq")  # length, microseconds

    def __init__(self, microseconds: list[int]) -> None:
        self.microseconds = microseconds

    @classmethod
    def read(cls, sent: bytes) -> Times:
        """Read what `array_send` makes of a `timestamptz[]`."""
        if len(sent) <= cls._HEAD:  # an empty array has no dimensions
            return cls([])
        if sent[4:8] == b"\0\0\0\0":
            return cls(cls._read_all(sent, (len(sent) - cls._HEAD) // cls._VALUE.size))
        values: list[Any] = []
        place = cls._HEAD
        while place < len(sent):
            if sent[place : place + 4] == b"\xff\xff\xff\xff":
                values.append(None)
                place += 4
            else:
                values.append(cls._VALUE.unpack_from(sent, place)[1])
                place += cls._VALUE.size
        return cls(values)

    @classmethod
    def _read_all(cls, sent: bytes, count: int) -> list[int]:
        """Read elements of which none is null, in one call."""
        room = count if count < _STEP else -(-count // _STEP) * _STEP  # so that there are few different ones
        sent = sent.ljust(cls._HEAD + room * cls._VALUE.size, b"\0")
        return list(_values(room).unpack_from(sent, cls._HEAD)[:count])

    def __len__(self) -> int:
        return len(self.microseconds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Times) and self.microseconds == other.microseconds

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Times({self.microseconds!r})"

    def __iter__(self) -> Iterator[datetime]:
        return map(_time_or_none, self.microseconds)

    @overload
    def __getitem__(self, index: int) -> datetime: ...
    @overload
    def __getitem__(self, index: slice) -> Times: ...
    def __getitem__(self, index: int | slice) -> datetime | Times:
        if isinstance(index, slice):
            return Times(self.microseconds[index])
        time: datetime = _time_or_none(self.microseconds[index])
        return time


_STEP = 64


@lru_cache(maxsize=2 * _STEP)
def _values(count: int) -> struct.Struct:
    """Return what reads this many elements. Making it costs as much as to use it several times."""
    return struct.Struct(">" + "4xq" * count)


def _time_or_none(microseconds: int | None) -> Any:
    return None if microseconds is None else from_microseconds(microseconds)
