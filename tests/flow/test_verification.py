"""Which leases may still be settled after a rewind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from headrace.flow.in_flight import InFlightTracker
from headrace.flow.lease import Lease, Parcel
from headrace.flow.verification import void_leases
from headrace.model.outcomes import RELEASE
from tests.flow.test_in_flight import Held

A, B = hash("a"), hash("b")


class Process:
    """A process with some leases."""

    def __init__(self) -> None:
        self.in_flight: InFlightTracker[Any] = InFlightTracker()
        self.messages: dict[int, Held] = {}

    def lease(self, lease_id: int, **messages: int) -> None:
        """Take a lease of these messages: `a1=1` is message 1 of key a."""
        seqs, keys = list(messages.values()), [name[0] for name in messages]
        lease = self.in_flight.take(lease_id, seqs, keys, 30.0)
        self.messages.update({seq: Held(seq, key, lease) for seq, key in zip(seqs, keys, strict=True)})

    def ack(self, *seqs: int) -> None:
        for seq in seqs:
            self.in_flight.ack(self.messages[seq])

    def send(self) -> Parcel:
        parcel = self.in_flight.collect(0.0, everything=True)
        assert parcel is not None
        return parcel

    def settle(self, *seqs: int) -> None:
        self.ack(*seqs)
        self.in_flight.settled(self.send(), [])

    def void(self, stored: Mapping[int, Mapping[int, int]], *, ordered: bool = True) -> set[int]:
        leases: Iterable[Lease] = self.in_flight.leases.values()
        return {lease.id for lease in void_leases(leases, self.in_flight.sent, stored, ordered=ordered)}


@pytest.fixture
def process() -> Process:
    return Process()


def test_leases_that_the_store_has_as_they_are_known_are_valid(process: Process) -> None:
    process.lease(7, a1=1, b1=2)
    process.lease(8, a2=3)
    process.settle(1)
    process.ack(3)  # and the ack is not settled
    assert process.void({7: {2: B}, 8: {3: A}}) == set()


def test_a_lease_that_the_store_has_lost_is_void(process: Process) -> None:
    process.lease(7, a1=1)
    process.lease(8, b1=2)
    assert process.void({7: {1: A}}) == {8}


def test_a_lease_with_a_message_that_was_settled_before_is_void(process: Process) -> None:
    process.lease(7, a1=1, b1=2)
    process.settle(1)
    assert process.void({7: {1: A, 2: B}}) == {7}


def test_a_message_behind_one_that_is_delivered_again_is_void_and_so_is_what_is_behind_its_lease(
    process: Process,
) -> None:
    process.lease(7, a1=1)
    process.lease(8, a2=2, b1=3)
    process.lease(9, b2=4)
    process.settle(1)
    stored = {7: {1: A}, 8: {2: A, 3: B}, 9: {4: B}}
    assert process.void(stored) == {8, 9}
    assert process.void(stored, ordered=False) == set()


def test_a_message_before_one_that_is_delivered_again_is_valid(process: Process) -> None:
    process.lease(7, a1=1)
    assert process.void({7: {1: A}, 99: {2: A}}) == set()


@pytest.mark.parametrize("arrived", [False, True])
def test_a_settlement_under_way_may_have_arrived_or_not(process: Process, arrived: bool) -> None:
    process.lease(7, a1=1, b1=2)
    process.ack(1)
    process.send()
    assert process.void({7: {2: B} if arrived else {1: A, 2: B}}) == set()


def test_a_failure_under_way_may_have_arrived_or_not(process: Process) -> None:
    process.lease(7, a1=1, b1=2)
    process.in_flight.fail(process.messages[1], RELEASE)
    process.send()
    assert process.void({7: {2: B}}) == set()
    assert process.void({7: {1: A, 2: B}}) == set()


def test_an_ack_of_a_transaction_that_was_reverted_voids_the_lease_since_its_effects_are_gone(
    process: Process,
) -> None:
    process.lease(7, a1=1, b1=2)
    process.messages[1].lease.note_durable(1)
    process.ack(1)
    assert process.void({7: {2: B}}) == set()
    assert process.void({7: {1: A, 2: B}}) == {7}
    process.send()
    assert process.void({7: {1: A, 2: B}}) == {7}


def test_a_hold_settles_the_parts_that_are_done_and_nothing_else(process: Process) -> None:
    process.lease(7, a1=1, b1=2)
    lease = process.messages[1].lease
    process.in_flight.lose(lease, 70)
    process.in_flight.fail(process.messages[1], RELEASE)
    parcel = process.send()
    settlement = parcel.settlement
    assert (settlement.whole, settlement.leases, settlement.seqs, settlement.failures) == ([], [70], [-1], [None])
    process.in_flight.settled(parcel, [])
    process.ack(2)
    settlement = process.send().settlement
    assert (settlement.whole, settlement.seqs) == ([70], [])
