"""Proofs that a benchmark must pass before its figure counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.payloads import Keys
from headrace import store
from headrace.store import Database, Executor


class CheckFailed(Exception):
    """The system did not do what was measured, so the figure is worthless."""


@contextmanager
def plain() -> Iterator[None]:
    """Unwrap a `CheckFailed` from the exception groups of task groups."""
    try:
        yield
    except BaseExceptionGroup as group:
        wrong = group.subgroup(CheckFailed)
        if wrong is None:
            raise
        raise _first(wrong) from group


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise CheckFailed(f"{what}: {found!r}, not {wanted!r}.")


def exactly_once(numbers: Iterable[int], count: int, consumer_name: str) -> str:
    """Check that every number below `count` occurs exactly once."""
    times = bytearray(count)
    for number in numbers:
        if not 0 <= number < count:
            raise CheckFailed(f"{consumer_name}: message {number} came, and {count} had been published.")
        times[number] = min(times[number] + 1, 2)
    if lost := times.count(0):
        raise CheckFailed(
            f"{consumer_name}: {lost} of {count} messages never came, the first of them {times.index(0)}."
        )
    if doubled := times.count(2):
        raise CheckFailed(
            f"{consumer_name}: {doubled} of {count} messages came more than once, the first of them {times.index(2)}."
        )
    return f"{consumer_name}: {count:,} messages came, each once"


def in_order(trace: Sequence[int], keys: Keys, consumer_name: str, *, awaits: bool) -> str:
    """Check that each message began after the previous message of its key had ended.

    The trace has a message's number where its handler began, and the number's complement where it
    ended. For handlers that never await it only has the former, since nothing can happen in
    between.
    """
    last: dict[int, int] = {}
    running: dict[int, int] = {}
    for entry in trace:
        number = entry if entry >= 0 else ~entry
        key = keys.place(number)
        if entry < 0:
            expect(running.pop(key, None), number, f"{consumer_name}: what ended in key {key}")
        elif key in running:
            raise CheckFailed(
                f"{consumer_name}: message {number} of key {key} began while {running[key]} was not done."
            )
        elif number <= last.get(key, -1):
            raise CheckFailed(f"{consumer_name}: message {number} of key {key} came after {last[key]}.")
        else:
            last[key] = number
            if awaits:
                running[key] = number
    expect(len(running), 0, f"{consumer_name}: handlers that never ended")
    return f"{consumer_name}: in order within each of {len(last):,} keys, one at a time"


def starts(trace: Iterable[int]) -> Iterable[int]:
    """The numbers of the messages that began."""
    return (entry for entry in trace if entry >= 0)


async def is_settled(database: Executor, stream: str, consumer: str) -> bool:
    """Whether nothing is ahead of the consumer, in flight or parked."""
    info = await store.consumer(database, stream, consumer)
    return not (info.lag or info.in_flight or info.parked)


async def settled(database: Executor, stream: str, consumer: str) -> str:
    """Check in the database that everything was acked: nothing is ahead, in flight, parked, blocked or dead."""
    info = await store.consumer(database, stream, consumer)
    left = {
        "lag": info.lag,
        "in flight": info.in_flight,
        "parked": info.parked,
        "blocked": info.blocked,
        "dead letters": info.dead_letters,
    }
    if any(left.values()):
        raise CheckFailed(f"{consumer}: not all was acked: {left}.")
    return f"{consumer}: lag, in flight, parked, blocked and dead letters are 0 in the database"


async def stored(database: Database, stream: str, count: int) -> str:
    """Check that the stream holds `count` messages."""
    found = await database.fetchval(f'select count(*) from headrace_streams."{stream}"')
    expect(found, count, f"messages in the stream {stream}")
    return f"{count:,} messages are in the stream"
