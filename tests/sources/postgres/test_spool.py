"""The spool returns the messages that were put in, without those that were rolled back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.postgres.capture.spool import Spool


def streamed(subxid: int, content: bytes) -> bytes:
    """Return a message as it comes in a streamed piece."""
    return b"I" + subxid.to_bytes(4, "big") + content


def test_a_transaction_comes_out_in_order_and_only_once() -> None:
    spool = Spool()
    spool.add(7, streamed(7, b"one"))
    spool.add(8, streamed(8, b"other"))
    spool.add(7, streamed(7, b"two"))
    assert list(spool.replay(7)) == [b"Ione", b"Itwo"]
    assert list(spool.replay(7)) == []
    assert len(spool) == 1
    spool.close()
    assert len(spool) == 0


def test_changes_of_a_rolled_back_savepoint_are_left_out() -> None:
    spool = Spool()
    for subxid in (7, 9, 10, 9, 7):
        spool.add(7, streamed(subxid, b"%d" % subxid))
    spool.abort(7, 9)
    assert list(spool.replay(7)) == [b"I7", b"I10", b"I7"]


def test_nothing_is_left_of_a_transaction_that_was_rolled_back() -> None:
    spool = Spool()
    spool.add(7, streamed(7, b"one"))
    spool.abort(7, 7)
    assert len(spool) == 0
    spool.abort(7, 8)  # nothing of this subtransaction arrived
    assert list(spool.replay(7)) == []


@given(
    payloads=st.lists(st.tuples(st.integers(1, 5), st.binary(max_size=300)), max_size=50),
    aborted=st.sets(st.integers(2, 5)),
)
def test_large_or_small_it_comes_out_as_it_went_in(payloads: list[tuple[int, bytes]], aborted: set[int]) -> None:
    spool = Spool(max_memory_bytes=500, read_bytes=64)
    for subxid, content in payloads:
        spool.add(1, streamed(subxid, content))
    for subxid in aborted:
        spool.abort(1, subxid)
    assert list(spool.replay(1)) == [b"I" + content for subxid, content in payloads if subxid not in aborted]
