"""The messages that are kept for other consumers of the process equal those read from the stream, and are bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from sys import getsizeof
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.clock import Times
from headrace.model.records import Batch
from headrace.runtime.leasing.recent_messages import MAX_RANGES, OVERHEAD, Content, Omission, Origin, RecentMessages
from tests.support.readers import to_microseconds

ORIGIN = Origin(UUID(int=1), 1)
NOW = to_microseconds(datetime(2026, 1, 1, tzinfo=UTC))
DATA = "x" * 451
SIZE = getsizeof(DATA) + OVERHEAD  # which differs from one version of Python to another


def content(seq: int, origin: Origin = ORIGIN) -> Content:
    return (f"k{seq}.{origin.stream}", DATA, None, NOW)


def batch_of(seqs: list[int], contents: list[Content | None], history: UUID | None = ORIGIN.history) -> Batch:
    keys, data, headers, times = ([None if one is None else one[part] for one in contents] for part in range(4))
    return Batch(1, seqs, None, keys, data, headers, Times(times), 0, False, None, history=history)  # type: ignore[arg-type]


def put(kept: RecentMessages, seqs: list[int], origin: Origin = ORIGIN) -> None:
    kept.put(origin, batch_of(seqs, [content(seq, origin) for seq in seqs], origin.history), range(len(seqs)))


def named(view: Omission) -> list[int]:
    return [seq for first, last in view.ranges for seq in range(first, last + 1)]


def completed(view: Omission, seqs: list[int]) -> list[str | None]:
    """The keys of a batch that left out what the view has."""
    there = set(named(view))
    batch = batch_of(seqs, [None if seq in there else content(seq) for seq in seqs])
    assert [batch.seqs[place] for place in view.complete(batch)] == [seq for seq in seqs if seq not in there]
    return list(batch.keys)


@given(st.lists(st.lists(st.integers(1, 300), max_size=12, unique=True), max_size=40), st.integers(8, 60))
def test_what_a_call_left_out_is_there_when_it_returns_however_much_came_meanwhile(
    puts: list[list[int]], room: int
) -> None:
    kept, views = RecentMessages(room * SIZE), [Omission()]
    for seqs in puts:
        put(kept, seqs)
        views.append(kept.omission(ORIGIN))
        there = named(views[-1])
        assert len(there) == len(set(there))
        assert kept.last == max(there, default=-1)
        assert kept.size == len(there) * SIZE <= (room + 1) * SIZE
        assert len(views[-1].ranges) <= 2 * (MAX_RANGES + len(seqs))
    for view in views:
        assert completed(view, [*named(view), 1000]) == [content(seq)[0] for seq in [*named(view), 1000]]


def test_only_messages_of_the_same_history_and_stream_are_left_out() -> None:
    kept = RecentMessages(100 * SIZE)
    put(kept, [1, 2])
    after, elsewhere = Origin(UUID(int=2), 1), Origin(UUID(int=1), 2)
    for other in (None, after, elsewhere):
        view = kept.omission(other)
        assert (view.ranges, view.history) == ([], None)
    put(kept, [2, 3], elsewhere)
    assert named(kept.omission(elsewhere)) == [2, 3]
    assert named(kept.omission(ORIGIN)) == []


def test_messages_that_expire_and_very_large_ones_are_not_kept() -> None:
    kept = RecentMessages(8 * SIZE)
    contents: list[Content | None] = [
        ("a", DATA, '{"headrace-expires-in": 60}', NOW), ("b", DATA + "x", None, NOW), ("c", DATA, '{"a": 1}', NOW),
    ]  # fmt: skip
    kept.put(ORIGIN, batch_of([1, 2, 3], contents), range(3))
    assert named(kept.omission(ORIGIN)) == [3]
