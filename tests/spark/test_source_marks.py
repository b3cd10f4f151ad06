"""Marks, which say the position up to which all transactions have ended."""

from __future__ import annotations

import random

from headrace_spark.positions.marks import MAX_MARKS, Marks


def test_a_mark_that_waits_for_no_transaction_counts_at_once() -> None:
    marks = Marks(3)
    marks.add(7, [])
    assert (marks.position, marks.open) == (7, frozenset())


def test_a_mark_counts_when_all_transactions_that_it_waits_for_have_ended() -> None:
    marks = Marks()
    marks.add(7, ["1", "2"])
    marks.ended(["2"])
    assert marks.position == 0
    marks.ended([])
    assert marks.position == 7


def test_a_later_transaction_holds_up_only_later_marks() -> None:
    marks = Marks()
    marks.add(7, ["1"])
    marks.add(9, ["1", "2"])
    marks.ended(["2", "3"])
    assert (marks.position, marks.open) == (7, frozenset("2"))


def test_a_mark_that_can_never_be_the_first_to_count_is_not_kept() -> None:
    marks = Marks()
    marks.add(7, ["1", "2"])
    marks.add(9, ["1"])
    marks.ended(["1", "2"])
    assert marks.open == frozenset("1")


def test_positions_never_go_back() -> None:
    marks = Marks(10)
    marks.add(7, [])
    marks.raise_to(8)
    assert marks.position == 10


def test_a_transaction_that_stays_open_fills_no_memory() -> None:
    marks = Marks()
    for number in range(10_000):
        marks.add(number + 1, ["stuck", f"{number}"])
    assert len(marks._waiting) <= MAX_MARKS
    marks.ended(["9999"])
    assert 9_000 < marks.position < 10_000
    marks.ended([])
    assert marks.position == 10_000


def test_a_position_is_never_ahead_of_an_open_transaction() -> None:
    """Transactions draw seqs and end in any order. The position is never above a seq that an open transaction drew."""
    for seed in range(30):
        chance = random.Random(seed)
        marks, drawn, running, number = Marks(), 0, {}, 0
        for _ in range(400):
            match chance.randrange(4):
                case 0:
                    number += 1
                    drawn += 1
                    running[str(number)] = drawn
                case 1 if running:
                    del running[chance.choice(list(running))]
                case 2:
                    marks.add(drawn, list(running))
                case 3:
                    marks.ended([one for one in marks.open if one in running])
            assert marks.position < min(running.values(), default=drawn + 1)
        marks.ended([])
        marks.add(drawn, [])
        assert marks.position == drawn
