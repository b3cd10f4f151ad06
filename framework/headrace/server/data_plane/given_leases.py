"""The leases that this server has just given to clients, by their ack ids.

A client usually acks all messages that it received in one request, in their order. The server that gave these very
ids knows them again, so it neither checks their signatures nor takes them apart. Other ids are read by `AckIds`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MAX_IDS = 20_000
"""Largest number of ack ids that are remembered. They use about 100 bytes each."""


class _Given(msgspec.Struct, frozen=True, gc=False):
    consumer: int
    lease: int
    ack_ids: Sequence[str]


class GivenLeases:
    """Remembers leases until they are acked. The oldest are forgotten first."""

    def __init__(self) -> None:
        self._by_first_id: dict[str, _Given] = {}
        self._ids = 0

    def add(self, consumer: int, lease: int, ack_ids: Sequence[str]) -> None:
        """Remember the ack ids of all messages of a lease."""
        self._by_first_id[ack_ids[0]] = _Given(consumer, lease, ack_ids)
        self._ids += len(ack_ids)
        while self._ids > MAX_IDS:
            self._forget(next(iter(self._by_first_id)))

    def take(self, consumer: int, ack_ids: Sequence[str]) -> int | None:
        """Return the lease of a consumer that was given with exactly these ack ids, and forget it. None if it is not
        remembered."""
        given = self._by_first_id.get(ack_ids[0]) if ack_ids else None
        if given is None or given.consumer != consumer or given.ack_ids != ack_ids:
            return None
        self._forget(ack_ids[0])
        return given.lease

    def clear(self) -> None:
        """Forget all leases."""
        self._by_first_id.clear()
        self._ids = 0

    def _forget(self, first_id: str) -> None:
        self._ids -= len(self._by_first_id.pop(first_id).ack_ids)
