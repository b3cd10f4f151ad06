"""A micro-batch is shared between streams, and ranges between tasks, so that none is starved and none has too much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidInput
from headrace_spark.positions.offsets import Position, parse, written
from headrace_spark.positions.sharing import packed, shares

AVAILABLE = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(-5, 10**6), max_size=12)


@given(AVAILABLE, st.integers(1, 2 * 10**6), st.integers(0, 100))
def test_the_shares_of_streams_are_within_the_limit_and_none_is_starved(
    available: dict[str, int], rows: int, turn: int
) -> None:
    found = shares(available, rows, turn)
    news = {name: count for name, count in available.items() if count > 0}
    assert sum(found.values()) <= rows
    assert all(1 <= share <= news[name] for name, share in found.items())
    if sum(news.values()) <= rows:
        assert found == news
    elif rows >= len(news):
        assert found.keys() == news.keys()


def test_streams_take_turns_if_there_are_more_than_rows() -> None:
    available = dict.fromkeys("abcde", 10)
    served = [name for turn in range(5) for name in shares(available, 2, turn)]
    assert sorted(served) == sorted("abcde" * 2)


def test_one_stream_has_all() -> None:
    assert shares({"a": 100}, 40) == {"a": 40}


@given(st.lists(st.integers(1, 1000)), st.integers(1, 10))
def test_parts_are_packed_into_few_bins_of_about_one_size(sizes: list[int], bins: int) -> None:
    found = packed(list(zip(sizes, range(len(sizes)), strict=True)), bins)
    assert sorted(place for places in found for place in places) == list(range(len(sizes)))
    assert len(found) <= bins
    assert all(places and places == sorted(places) for places in found)
    if sizes:
        largest = max(sum(sizes[place] for place in places) for places in found)
        assert largest <= sum(sizes) / bins + max(sizes)


def test_an_offset_is_read_in_both_forms_and_always_written_the_same() -> None:
    one = Position("u1", 17)
    assert parse({"stream": "u1", "position": 17}) == {"u1": one}
    assert written([one], single=True) == {"stream": "u1", "position": 17}
    orders, payments = Position("u1", 17, name="orders"), Position("u2", 0, earliest=True, name="payments")
    offset = written([payments, orders], single=False)
    assert list(offset["streams"]) == ["orders", "payments"]
    assert offset == written([orders, payments], single=False)
    assert parse(offset) == {"u1": orders, "u2": payments}


@pytest.mark.parametrize("offset", [{}, {"stream": "u1"}, {"streams": ["a"]}, {"streams": {"a": 1}}])
def test_an_offset_of_something_else_is_reported(offset: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="not an offset of Headrace"):
        parse(offset)
