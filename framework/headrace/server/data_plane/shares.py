"""Division of a batch of leased messages into the shares of the requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress

from headrace.model.ack_ids import AckIds
from headrace.model.outcomes import RELEASE, Settlement
from headrace.model.records import Batch
from headrace.server.data_plane.message_cache import CachedMessage
from headrace.server.data_plane.receive_request import Receiver, Share


def places(called: Sequence[Receiver], batch: Batch, leases: Sequence[int]) -> Iterator[tuple[Receiver, int, slice]]:
    """Divide a batch. Yields each request with its lease and the slice of its messages."""
    first = 0
    for receiver, lease in zip(called, leases, strict=False):
        last = min(first + receiver.want, len(batch.seqs))
        yield receiver, lease, slice(first, last)
        first = last


def share_of(
    batch: Batch, messages: Sequence[CachedMessage | None], lease: int, place: slice, ack_ids: AckIds, consumer: int
) -> Share:
    """Return a share of a batch.

    Args:
        messages: the messages of the batch. None for each that was deleted meanwhile.
        place: the slice of the share.
        ack_ids: makes the ack ids.
        consumer: the consumer's number.
    """
    seqs, found = batch.seqs[place], messages[place]
    attempts = [1] * len(seqs) if batch.attempts is None else batch.attempts[place]
    if None in found:  # retention has deleted them since, so they can't be delivered
        there = [one is not None for one in found]
        seqs, found, attempts = (list(compress(values, there)) for values in (seqs, found, attempts))  # type: ignore[assignment]
    ids = ack_ids.seal_all(consumer, lease, seqs, attempts)
    return Share(lease, ids, seqs, attempts, found)  # type: ignore[arg-type]


def add_released(back: Settlement, lease: int, seqs: Sequence[int]) -> None:
    """Add messages of a lease to those that are released."""
    back.leases += [lease] * len(seqs)
    back.seqs += seqs
    back.failures += [RELEASE] * len(seqs)
