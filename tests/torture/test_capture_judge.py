"""Tests of the judge of captured streams. It must notice every kind of fault, or its runs would prove nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.torture.capture_judge import Metadata, Replica, Taken, Wrong, check_places, transactions

KEYS = {"public.t": ["id"], "public.log": []}


def message(action: str, record: Any, lsn: int, idx: int = 0, table: str = "t", **more: Any) -> Taken:
    unchanged = more.pop("unchanged", [])
    return Taken(record, action, Metadata("public", table, "", lsn, idx, unchanged), **more)


GOOD = [
    message("insert", {"id": 1, "v": "a"}, 10, 0),
    message("insert", {"id": 2, "v": "b"}, 10, 1),
    message("insert", {"n": 1}, 10, 2, "log"),
    message("update", {"id": 1, "v": "c"}, 20, 0, changes={"v": "a"}),
    message("read", {"id": 1, "v": "c"}, 15),
    message("update", {"id": 3, "v": "b"}, 30, 0, changes={"id": 2}),
    message("update", {"id": 3}, 30, 1, unchanged=["v"]),
    message("delete", {"id": 1}, 30, 2),
]


def test_a_good_stream_is_good() -> None:
    assert check_places(GOOD, whole=True) == 7
    assert [len(group) for group in transactions(GOOD)] == [3, 1, 3]
    replica = Replica(KEYS).all(GOOD)
    replica.compare("public.t", [{"id": 3, "v": "b"}])
    replica.compare("public.log", [{"n": 1}])
    assert replica.confirmed == 1


@pytest.mark.parametrize("n", [n for n, one in enumerate(GOOD) if one.action != "read"])
def test_a_change_that_is_there_twice_is_noticed(n: int) -> None:
    with pytest.raises(Wrong, match="twice"):
        check_places([*GOOD[: n + 1], *GOOD[n:]])


@pytest.mark.parametrize("lost", [0, 1, 3, 5, 7])
def test_a_change_of_a_row_that_is_lost_is_noticed(lost: int) -> None:
    with pytest.raises(Wrong):
        Replica(KEYS).all([one for n, one in enumerate(GOOD) if n != lost]).compare("public.t", [{"id": 3, "v": "b"}])


def test_a_lost_row_of_a_table_without_a_key_is_noticed() -> None:
    replica = Replica(KEYS).all(GOOD)
    with pytest.raises(Wrong):
        replica.compare("public.log", [{"n": 1}, {"n": 1}])


def test_a_hole_within_a_transaction_is_noticed() -> None:
    with pytest.raises(Wrong, match="missing"):
        check_places([GOOD[0], GOOD[2]], whole=True)
    with pytest.raises(Wrong, match="missing"):
        check_places(GOOD[1:], whole=True)


def test_transactions_out_of_order_are_noticed() -> None:
    with pytest.raises(Wrong, match="comes after"):
        check_places([GOOD[3], GOOD[0]])


def test_a_transaction_that_is_captured_again_after_its_end_is_noticed() -> None:
    with pytest.raises(Wrong, match="comes after"):
        check_places([*GOOD[:3], *GOOD[:3]])


@pytest.mark.parametrize(
    ("wrong", "expected_error"),
    [
        (message("insert", {"id": 1, "v": "a"}, 40), "already"),
        (message("update", {"id": 9, "v": "a"}, 40), "not there"),
        (message("update", {"id": 1, "v": "x"}, 40, changes={"v": "y"}), "it was 'c'"),
        (message("update", {"id": 1}, 40), "lacks"),
        (message("update", {"id": 1, "v": "c"}, 40, unchanged=["v"]), "it lacks"),
        (message("update", {"id": 2, "v": "a"}, 40, changes={"id": 1}), "another row"),
        (message("delete", {"id": 9}, 40), "not there"),
        (message("delete", {"id": 1, "v": "old"}, 40), "it was 'c'"),
        (message("delete", {"v": "c"}, 40), "key"),
        (message("read", {"id": 1, "v": "a"}, 40), "the changes before it"),
        (message("update", {"n": 2}, 40, table="log"), "without a key"),
        (message("insert", {"id": 1}, 40, table="other"), "not captured"),
    ],
)
def test_what_can_not_come_is_noticed(wrong: Taken, expected_error: str) -> None:
    replica = Replica(KEYS).all(GOOD[:5])
    with pytest.raises(Wrong, match=expected_error):
        replica.apply(wrong)


def test_a_read_that_brings_a_deleted_row_back_is_noticed() -> None:
    replica = Replica(KEYS, complete=False)
    replica.all(
        [message("delete", {"id": 4}, 10), message("update", {"id": 5, "v": "x"}, 20)]
    )  # not read yet, so both are possible
    with pytest.raises(Wrong, match="deleted before"):
        replica.apply(message("read", {"id": 4, "v": "x"}, 30))
    replica.apply(message("truncate", None, 40))
    with pytest.raises(Wrong, match="deleted before"):
        replica.apply(message("read", {"id": 6, "v": "x"}, 50))


def test_a_truncate_empties_the_table_and_no_other() -> None:
    replica = Replica(KEYS).all([*GOOD, message("truncate", None, 50)])
    replica.compare("public.t", [])
    replica.compare("public.log", [{"n": 1}])
