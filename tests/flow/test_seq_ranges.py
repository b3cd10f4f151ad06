"""Sets of seqs as ranges."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.flow.seq_ranges import SeqRanges


@given(st.lists(st.lists(st.integers(1, 60), max_size=8, unique=True), max_size=20))
def test_the_ranges_are_the_seqs_that_were_added(additions: list[list[int]]) -> None:
    ranges, added = SeqRanges(), set[int]()
    for seqs in additions:
        ranges.add(new := [seq for seq in seqs if seq not in added])
        added.update(new)
        assert [seq for first, last in ranges.ranges for seq in range(first, last + 1)] == sorted(added)
        assert all(after[0] > before[1] + 1 for before, after in pairwise(ranges.ranges))
