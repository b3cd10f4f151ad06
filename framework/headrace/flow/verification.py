"""Verification: which leases of this process may still be settled, after the history of the database has changed.

A crash, a failover, a restore, or a copy that was put back is a rewind: the store is as it was at an earlier
time. Then a lease may hold messages again that this process has settled and forgotten, and later messages of their
keys must not be settled before these. After an orderly restart the store is as this process knows it.

A lease agrees with the store if both have the same messages in it. Messages whose settlement is under way may be in
the store or not. If a lease agrees, no later settlement of it was reverted. An earlier message of one of its keys may
have been settled in another lease, which then has it again: this process leased the earlier message first, so a store
that has the later lease has the earlier one, too, unless its messages are settled. So a lease with a message behind
such a message is void, although it agrees, and so are those behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.flow.lease import Lease, Parcel

_NEVER = float("inf")

Stored = Mapping[int, Mapping[int, int]]
"""The leases in the store: for each the hashes of the keys of its messages that are not acked, by seq."""


def void_leases(leases: Iterable[Lease], sent: Parcel | None, stored: Stored, *, ordered: bool) -> list[Lease]:
    """Return those of the leases that must not be settled.

    Args:
        leases: the leases of this process, without lost ones.
        sent: the parcel that may have arrived, see `InFlightTracker.sent`.
        stored: all leases that the store has of this process.
        ordered: whether messages of a key are in order.
    """
    left = {lease.id: lease for lease in leases}
    under_way = _under_way(sent)
    void = []
    earliest: dict[int, float] = {}  # the first message of each key that is to be delivered again
    again = [rows for lease_id, rows in stored.items() if lease_id not in left]
    while True:
        for rows in again:
            for seq, key in rows.items():
                earliest[key] = min(seq, earliest.get(key, _NEVER))
        again = []
        for lease in list(left.values()):
            rows = stored.get(lease.id, {})
            behind = ordered and any(seq > earliest.get(key, _NEVER) for seq, key in rows.items())
            if lease.id not in stored or behind or not _agrees(lease, rows.keys(), under_way.get(lease.id, set())):
                void.append(left.pop(lease.id))
                again.append(rows)
        if not again:
            return void


def _agrees(lease: Lease, seqs: Iterable[int], under_way: set[int]) -> bool:
    """Whether the store has these messages in the lease, as far as this process knows."""
    durable = lease.durable or set()  # a transaction has acked these. Otherwise it was reverted, with its effects
    held = lease.open.keys() - under_way - durable
    return held <= set(seqs) <= held | (under_way - durable)


def _under_way(sent: Parcel | None) -> dict[int, set[int]]:
    """The messages of each lease whose settlement is under way."""
    found: dict[int, set[int]] = {}
    if sent is not None:
        for message, _ in sent.failures:
            found.setdefault(message.lease.id, set()).add(message.seq)
        for lease, seqs in sent.acked:
            found.setdefault(lease.id, set()).update(seqs)
    return found
