"""Which rows of a chunk are older than what was captured. This is plain code without a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.postgres.backfill.visibility import ChangedRows, Snapshot

ORDERS = "public.orders"


def key(value: int) -> tuple[bytes, ...]:
    return (str(value).encode(),)


def begun(max_rows: int = 1000) -> ChangedRows:
    changed = ChangedRows(max_rows)
    changed.start(ORDERS)
    changed.transaction_captured(1)  # it is unknown whether all its changes were recorded
    return changed


def test_a_snapshot_sees_what_ended_before_it_and_does_not_run_any_more() -> None:
    snapshot = Snapshot.of("10:20:10,14")
    assert [xid for xid in range(5, 25) if not snapshot.sees(xid)] == [10, 14, 20, 21, 22, 23, 24]


def test_a_snapshot_of_a_quiet_server_has_nothing_running() -> None:
    assert Snapshot.of("10:10:") == Snapshot(10, frozenset())


@pytest.mark.parametrize("epoch", [0, 1, 7])
@pytest.mark.parametrize("end", [3, 1000, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1])
def test_an_id_of_32_bits_stands_for_the_transaction_that_is_nearest(epoch: int, end: int) -> None:
    whole = epoch * 2**32 + end
    snapshot = Snapshot(whole, frozenset({whole - 2}))
    assert [snapshot.sees((whole + away) % 2**32) for away in (-5, -3, -2, -1, 0, 1, 1000)] == [
        True, True, False, True, False, False, False,
    ]  # fmt: skip


def test_a_row_that_the_snapshot_sees_changed_is_as_new_in_the_chunk() -> None:
    changed = begun()
    changed.row_changed(ORDERS, key(1), 5)
    changed.row_changed(ORDERS, key(2), 12)
    changed.row_changed(ORDERS, key(3), 20)
    assert set(changed.keys_unseen_by(Snapshot.of("12:20:12"))) == {key(2), key(3)}


def test_changes_of_other_tables_are_nothing_to_it() -> None:
    changed = begun()
    changed.row_changed("public.customers", key(1), 50)
    assert set(changed.keys_unseen_by(Snapshot.of("10:20:"))) == set()


def test_changes_that_the_oldest_snapshot_sees_are_forgotten() -> None:
    changed = begun()
    changed.row_changed(ORDERS, key(1), 5)
    changed.row_changed(ORDERS, key(2), 25)
    changed.forget_seen_by(Snapshot.of("20:20:"))
    changed.row_changed(ORDERS, key(3), 6)  # captured late
    changed.row_changed(ORDERS, key(4), 26)
    assert set(changed.keys_unseen_by(Snapshot.of("1:1:"))) == {key(2), key(4)}


def test_the_first_snapshot_must_see_everything_captured_before_tracking_began() -> None:
    changed = ChangedRows()
    for xid in (7, 11, 9):
        changed.transaction_captured(xid)
    changed.start(ORDERS)
    assert not changed.covers(Snapshot.of("11:12:11"))
    assert not changed.covers(Snapshot.of("11:11:"))
    assert changed.covers(Snapshot.of("12:12:"))


def test_the_transaction_that_was_under_way_when_tracking_began_has_to_be_seen_too() -> None:
    changed = ChangedRows()
    changed.start(ORDERS)
    assert changed.covers(Snapshot.of("11:11:"))
    changed.transaction_captured(11)  # its first changes were not recorded
    assert not changed.covers(Snapshot.of("11:11:"))
    changed.transaction_captured(12)  # all of its changes were recorded
    assert changed.covers(Snapshot.of("12:12:"))


def test_the_next_backfill_of_another_table_begins_anew() -> None:
    changed = begun()
    changed.forget_seen_by(Snapshot.of("10:10:"))
    changed.row_changed(ORDERS, key(1), 20)
    changed.transaction_captured(20)
    changed.start("public.customers")
    assert not changed.covers(Snapshot.of("20:20:"))
    assert changed.covers(Snapshot.of("21:21:"))
    assert set(changed.keys_unseen_by(Snapshot.of("20:20:"))) == set()


def test_going_on_with_the_same_table_keeps_what_is_known() -> None:
    changed = begun()
    changed.row_changed(ORDERS, key(1), 20)
    changed.transaction_captured(20)
    changed.start(ORDERS)
    assert changed.covers(Snapshot.of("20:20:"))
    assert set(changed.keys_unseen_by(Snapshot.of("20:20:"))) == {key(1)}


def test_nothing_is_kept_after_the_end() -> None:
    changed = begun()
    changed.row_changed(ORDERS, key(1), 20)
    changed.stop()
    assert not changed.tracking
    changed.row_changed(ORDERS, key(2), 21)
    assert set(changed.keys_unseen_by(Snapshot.of("1:1:"))) == set()


def test_too_many_changed_rows_are_forgotten_and_chunks_that_would_need_them_are_of_no_use() -> None:
    changed = begun(max_rows=10)
    for number in range(11):
        changed.row_changed(ORDERS, key(number), 20 + number)
        changed.transaction_captured(20 + number)
    assert not changed.covers(Snapshot.of("25:25:"))
    assert changed.covers(Snapshot.of("31:31:"))


def test_a_row_that_changes_again_and_again_in_one_transaction_counts_once() -> None:
    changed = begun(max_rows=10)
    for _ in range(100):
        changed.row_changed(ORDERS, key(1), 20)
    changed.transaction_captured(20)
    assert changed.covers(Snapshot.of("20:20:"))


xids = st.integers(10, 40)


@given(
    st.lists(st.tuples(xids, st.lists(st.integers(0, 5), max_size=3)), max_size=30, unique_by=lambda one: one[0]),
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(10, 41), st.sets(xids, max_size=5)),
        min_size=1,
        max_size=5,
        unique_by=lambda one: one[0],  # of two changes at one position only the later one matters
    ),
    st.integers(2, 40),
)
def test_no_row_is_kept_that_a_captured_transaction_changed_unseen(
    transactions: list[tuple[int, list[int]]], taken: list[tuple[int, int, set[int]]], max_rows: int
) -> None:
    """Compare with the obvious algorithm, which remembers everything.

    Snapshots grow as those of a server do. Each begins to matter when the one before no longer does.
    """
    snapshots = []
    seen: set[int] = set()
    for at, end, running in sorted(taken, key=lambda one: one[:2]):
        seen |= {xid for xid in range(10, end) if xid not in running}
        end = max(seen, default=9) + 1
        snapshots.append((at, Snapshot(end, frozenset(xid for xid in range(10, end) if xid not in seen))))
    changed = ChangedRows(max_rows)
    captured: list[tuple[int, list[int]]] = []

    def judge(snapshot: Snapshot) -> None:
        if not changed.covers(snapshot):
            return
        expected = {key(row) for xid, rows in captured for row in rows if not snapshot.sees(xid)}
        assert set(changed.keys_unseen_by(snapshot)) == expected

    changed.start(ORDERS)
    for place, (xid, rows) in enumerate(transactions):
        for at, snapshot in snapshots:
            if at == place:
                changed.forget_seen_by(snapshot)
        for row in rows:
            changed.row_changed(ORDERS, key(row), xid)
        changed.transaction_captured(xid)
        captured.append((xid, rows))
        for at, snapshot in snapshots:
            if at == max((at for at, _ in snapshots if at <= place), default=None) or at > place:
                judge(snapshot)
