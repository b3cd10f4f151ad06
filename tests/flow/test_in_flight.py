"""The in-flight tracker: each outcome reaches the store once and in the order of its key, and
settling a whole lease never hides a failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.flow.in_flight import CHEAP, GATHER, LINGER, MANY, InFlightTracker
from headrace.flow.lease import Lease, Parcel
from headrace.model.outcomes import RELEASE, Failure, Settlement
from headrace.model.records import Lost

RETRY = Failure("retry", 1.0, "boom")
REJECT = Failure("reject", None, "no use")


class Held(NamedTuple):
    seq: int
    lane: str
    lease: Lease


class NaiveStore:
    """The effect of a settlement in the store, in its simplest form."""

    def __init__(self) -> None:
        self.leases: dict[int, set[int]] = {}
        self.expiries: dict[int, float] = {}
        self.told: dict[tuple[int, int], Failure | None] = {}  # by lease and seq, None is an ack

    def settle(self, settlement: Settlement) -> list[Lost]:
        lost = []
        for lease in settlement.whole:
            if lease not in self.leases:
                lost.append(Lost(lease, None))
            for seq in self.leases.pop(lease, set()):
                self.record(lease, seq, None)
        for lease, seq, failure in zip(settlement.leases, settlement.seqs, settlement.failures, strict=True):
            if seq not in self.leases.get(lease, set()):
                lost.append(Lost(lease, seq, lease not in self.leases))
                continue
            self.record(lease, seq, failure)
            self.leases[lease].remove(seq)
            if not self.leases[lease]:
                del self.leases[lease]
        return lost

    def record(self, lease: int, seq: int, failure: Failure | None) -> None:
        assert (lease, seq) not in self.told, "an outcome was told twice"
        self.told[lease, seq] = failure


class CustodyMachine(RuleBasedStateMachine):
    """Leases, outcomes, parcels, losses and extensions in any order, compared with the naive store."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight: InFlightTracker[Held] = InFlightTracker()
        self.in_flight.gather = LINGER / 2
        self.in_flight.on_outcome.connect(self.note_news)
        self.news = self.news_collected = 0
        self.store = NaiveStore()
        self.now = 0.0
        self.seq = self.lease_id = 0
        self.open: list[Held] = []  # without an outcome
        self.messages: list[Held] = []
        self.outcomes: dict[tuple[int, int], Failure | None] = {}
        self.taken = self.arrived = 0
        self.stolen: set[int] = set()  # leases that the store has ended
        self.known_lost: set[int] = set()  # ... and that custody knows to be lost
        self.parcel: Parcel | None = None  # collected, and not yet answered
        self.answer: list[Lost] | None = None  # the store's answer, once it has settled the parcel
        self.asked: list[Lease] | None = None  # the leases of an extension without an answer
        self.asked_at = 0.0
        self.taken_since = False  # whether a lease was taken since then

    def note_news(self) -> None:
        self.news += 1

    @rule(keys=st.lists(st.sampled_from("abc"), min_size=1, max_size=3))
    def a_lease_is_taken(self, keys: list[str]) -> None:
        size = len(keys)
        self.lease_id += 1
        seqs = list(range(self.seq + 1, self.seq + size + 1))
        lease = self.in_flight.take(self.lease_id, seqs, keys, self.now + 30)
        messages = [Held(seq, key, lease) for seq, key in zip(seqs, keys, strict=True)]
        self.seq += size
        self.taken += size
        self.open += messages
        self.messages += messages
        self.store.leases[lease.id] = {message.seq for message in messages}
        self.store.expiries[lease.id] = self.now + 30
        self.taken_since = True

    @precondition(lambda self: self.open)
    @rule(data=st.data(), failure=st.sampled_from([None] * 9 + [RETRY, REJECT, RELEASE]))
    def a_message_has_its_outcome(self, data: st.DataObject, failure: Failure | None) -> None:
        key = data.draw(st.sampled_from(sorted({message.lane for message in self.open})))
        message = next(
            message for message in self.open if message.lane == key
        )  # as with lanes, the outcomes of a key's messages are in order
        self.open.remove(message)
        self.outcomes[message.lease.id, message.seq] = failure
        if failure is not None:
            news = self.news
            self.in_flight.fail(message, failure)
            assert self.in_flight.urgent
            assert self.news > news
            return
        self.in_flight.ack(message)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def a_lane_runs_dry(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted({message.lane for message in self.open})))
        for message in [message for message in self.open if message.lane == key]:
            self.open.remove(message)
            self.outcomes[message.lease.id, message.seq] = None
            self.in_flight.ack(message)

    @rule(seconds=st.floats(0.0, LINGER / 4))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.parcel is None)
    @rule(everything=st.sampled_from([False, False, False, True]))
    def a_parcel_is_collected(self, everything: bool) -> None:
        urgent = self.in_flight.urgent
        self.parcel, self.answer = self.in_flight.collect(self.now, everything=everything), None
        self.news_collected = self.news
        due = self.in_flight.due
        if self.parcel is None:
            assert due is not None or not urgent, "what is done waits for nothing but for what lingers"
            assert not (everything and due is not None)
            assert due is None or self.now < due
        else:
            assert not self.known_lost.intersection(self.parcel.settlement.whole + self.parcel.settlement.leases)
            assert not self.in_flight.urgent

    @precondition(lambda self: self.parcel is not None and self.answer is None)
    @rule()
    def the_store_settles_it(self) -> None:
        assert self.parcel is not None
        self.answer = self.store.settle(self.parcel.settlement)
        self.no_message_was_settled_before_earlier_ones_of_its_key()
        assert {item.lease_id for item in self.answer} <= self.stolen

    def no_message_was_settled_before_earlier_ones_of_its_key(self) -> None:
        """A crash now delivers again what is not settled. That must never include a message before
        a settled one of its key, because the settled one is never redelivered."""
        for key in "abc":
            held = [m for m in self.messages if m.lane == key and m.lease.id not in self.stolen]
            settled = [(m.lease.id, m.seq) in self.store.told for m in held]
            assert settled == sorted(settled, reverse=True), f"{key}: {[m.seq for m in held]} {settled}"

    @precondition(lambda self: self.answer is not None)
    @rule()
    def its_answer_arrives(self) -> None:
        assert self.parcel is not None
        assert self.answer is not None
        news = {item.lease_id for item in self.answer if item.gone} - self.known_lost
        gone = self.in_flight.settled(self.parcel, self.answer)
        assert {lease.id for lease in gone} == news
        assert all(lease.lost for lease in gone)
        self.known_lost |= news
        self.arrived += self.parcel.messages
        self.parcel = self.answer = None

    @precondition(lambda self: self.store.leases)
    @rule(data=st.data())
    def a_lease_is_lost(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.store.leases)))
        del self.store.leases[lease]
        self.stolen.add(lease)

    @precondition(lambda self: self.in_flight.leases)
    @rule()
    def the_database_is_rewound(self) -> None:
        """All leases are void, even if the store may still hold them, as for an extension that is in progress."""
        gone = set(self.in_flight.leases)
        for lease in list(self.in_flight.leases.values()):
            self.in_flight.lose(lease)
        self.stolen |= gone | self.store.leases.keys()
        self.store.leases.clear()
        self.known_lost |= gone

    @precondition(lambda self: self.asked is None)
    @rule()
    def an_extension_is_asked_for(self) -> None:
        self.asked, self.asked_at, self.taken_since = list(self.in_flight.leases.values()), self.now, False
        self.alive = [lease.id for lease in self.asked if lease.id in self.store.leases]
        self.store.expiries |= dict.fromkeys(self.alive, self.now + 30)

    @precondition(lambda self: self.asked is not None)
    @rule()
    def the_extension_is_answered(self) -> None:
        assert self.asked is not None
        missing = self.in_flight.extended(self.asked, self.alive, self.asked_at + 30)
        assert {lease.id for lease in missing} <= self.stolen
        for lease in missing:  # as a verification finds out
            self.in_flight.lose(lease)
        self.known_lost |= {lease.id for lease in missing}
        unfinished = {message.lease.id for message in self.open}
        for lease in self.asked:
            if lease.id in self.known_lost:
                assert lease.deadline < self.now, "what waits of a lost lease must not start"
            elif lease.id not in self.alive:
                assert lease.id not in unfinished
            elif not missing and not self.taken_since:
                assert lease.deadline == self.asked_at + 30
        self.asked = None

    @invariant()
    def no_message_starts_once_a_lease_of_its_process_has_expired(self) -> None:
        """The store expires all leases of an owner together."""
        first = min((self.store.expiries[lease] for lease in self.store.leases), default=float("inf"))
        for message in self.open:
            if message.lease.id in self.store.leases:
                assert message.lease.deadline <= first

    @rule()
    def the_store_has_hardly_any_room(self) -> None:
        self.in_flight.hurry()

    @invariant()
    def the_settler_knows_of_what_is_urgent(self) -> None:
        assert not self.in_flight.urgent or self.news > self.news_collected or self.in_flight.due is not None

    @invariant()
    def held_messages_are_those_that_are_not_settled(self) -> None:
        assert self.in_flight.held == self.taken - self.arrived
        assert self.in_flight.statistics()["held"] == self.in_flight.held

    @invariant()
    def settled_outcomes_are_the_reported_outcomes(self) -> None:
        for place, failure in self.store.told.items():
            assert self.outcomes[place] is failure

    @invariant()
    def counts_are_right(self) -> None:
        assert self.in_flight.acked == sum(1 for failure in self.outcomes.values() if failure is None)
        kinds = [failure.kind for failure in self.outcomes.values() if failure is not None]
        assert self.in_flight.failed == sum(1 for kind in kinds if kind != "release")

    def teardown(self) -> None:
        """In the end every outcome except those of lost leases has reached the store, and no message is held."""
        if self.parcel is not None and self.answer is None:
            self.the_store_settles_it()
        if self.parcel is not None:
            self.its_answer_arrives()
        for message in self.open:
            self.in_flight.ack(message)
            self.outcomes[message.lease.id, message.seq] = None
        self.open.clear()
        self.parcel = self.in_flight.collect(self.now, everything=True)
        if self.parcel is not None:
            self.the_store_settles_it()
            self.its_answer_arrives()
        assert self.in_flight.collect(self.now + 1, everything=True) is None
        assert self.in_flight.due is None
        assert self.in_flight.held == 0
        assert self.in_flight.leases == {}
        assert {place for place in self.outcomes if place[0] not in self.stolen} == {
            place for place in self.store.told if place[0] not in self.stolen
        }


CustodyMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestCustody = CustodyMachine.TestCase


@pytest.fixture
def in_flight() -> InFlightTracker[Held]:
    return InFlightTracker()


def take(in_flight: InFlightTracker[Held], lease_id: int, size: int) -> list[Held]:
    return take_keys(in_flight, lease_id, [f"key{seq}" for seq in range(1, size + 1)], first=1)


def take_keys(in_flight: InFlightTracker[Held], lease_id: int, keys: Sequence[str], *, first: int) -> list[Held]:
    """Take a lease of messages with these keys, numbered from `first`."""
    seqs = range(first, first + len(keys))
    lease = in_flight.take(lease_id, seqs, keys, 30.0)
    return [Held(seq, key, lease) for seq, key in zip(seqs, keys, strict=True)]


def test_many_messages_in_unfinished_leases_linger_longer(in_flight: InFlightTracker[Held]) -> None:
    many, few = take(in_flight, 7, 3 * CHEAP), take(in_flight, 8, 2)
    in_flight.ack(many[0])
    in_flight.ack(few[0])
    assert in_flight.collect(1.0) is None
    assert in_flight.due == pytest.approx(1.0 + 3 * LINGER, rel=0.01)
    assert in_flight.collect(1.0 + 2 * LINGER) is None
    for message in many[1:]:
        in_flight.ack(message)
    parcel = in_flight.collect(1.0 + LINGER)
    assert parcel is not None
    assert parcel.settlement == Settlement(whole=[7], leases=[8], seqs=[1], failures=[None])


def test_a_lease_that_is_all_acked_is_settled_by_its_id_alone(in_flight: InFlightTracker[Held]) -> None:
    first, second = take(in_flight, 7, 2)
    in_flight.ack(first)
    assert in_flight.collect(0.0) is None
    in_flight.ack(second)
    parcel = in_flight.collect(0.0)
    assert parcel is not None
    assert parcel.settlement == Settlement(whole=[7])
    assert parcel.messages == 2


def test_acks_of_an_unfinished_lease_linger_and_then_go(in_flight: InFlightTracker[Held]) -> None:
    messages = take(in_flight, 7, 3)
    heard: list[int] = []
    in_flight.on_outcome.connect(lambda: heard.append(in_flight.acked))
    in_flight.ack(messages[0])
    in_flight.ack(messages[1])
    assert heard == [1], "one alarm is enough"
    assert in_flight.collect(1.0) is None
    assert in_flight.due == 1.0 + LINGER
    assert in_flight.collect(1.0 + LINGER / 2) is None
    parcel = in_flight.collect(1.0 + LINGER)
    assert parcel is not None
    assert parcel.settlement == Settlement(leases=[7, 7], seqs=[1, 2], failures=[None, None])
    assert in_flight.due is None


def single(in_flight: InFlightTracker[Held], number: int) -> Held:
    """Take a lease of one message."""
    return take_keys(in_flight, number, [f"key{number}"], first=number)[0]


def test_finished_leases_gather_after_a_small_settlement(in_flight: InFlightTracker[Held]) -> None:
    in_flight.gather = GATHER
    heard: list[int] = []
    in_flight.on_outcome.connect(lambda: heard.append(in_flight.acked))
    in_flight.ack(single(in_flight, 1))
    parcel = in_flight.collect(1.0)
    assert parcel is not None, "the first one waits for nothing"
    in_flight.settled(parcel, [])
    for number in range(2, 5):
        in_flight.ack(single(in_flight, number))
        assert in_flight.collect(1.0 + GATHER / 2) is None
    assert heard == [1, 2], "one alarm is enough"
    assert in_flight.due == 1.0 + GATHER
    parcel = in_flight.collect(1.0 + GATHER)
    assert parcel is not None
    assert parcel.settlement == Settlement(whole=[2, 3, 4])
    assert in_flight.due is None


def test_many_finished_leases_gather_no_more(in_flight: InFlightTracker[Held]) -> None:
    in_flight.gather = GATHER
    heard: list[int] = []
    for number in range(1, MANY + 2):
        in_flight.ack(single(in_flight, number))
        if number == 1:
            assert in_flight.collect(1.0) is not None
            in_flight.on_outcome.connect(lambda: heard.append(in_flight.acked))
    assert heard == [2, MANY + 1]
    parcel = in_flight.collect(1.0)
    assert parcel is not None
    assert parcel.messages == MANY
    in_flight.ack(single(in_flight, MANY + 2))
    assert in_flight.collect(1.0) is not None, "after a large settlement the next one waits for nothing"


@pytest.mark.parametrize("reason", ["a failure", "a caller that waits", "hardly any room"])
def test_finished_leases_do_not_gather_if_something_waits_for_them(
    in_flight: InFlightTracker[Held], reason: str
) -> None:
    in_flight.gather = GATHER
    in_flight.ack(single(in_flight, 1))
    assert in_flight.collect(1.0) is not None
    in_flight.ack(single(in_flight, 2))
    heard: list[int] = []
    in_flight.on_outcome.connect(lambda: heard.append(in_flight.acked))
    if reason == "a failure":
        in_flight.fail(single(in_flight, 3), RETRY)
    elif reason == "hardly any room":
        in_flight.hurry()
    parcel = in_flight.collect(1.0, everything=reason == "a caller that waits")
    assert parcel is not None
    assert parcel.settlement.whole == [2]
    assert bool(heard) == (reason != "a caller that waits")


def test_a_failure_is_settled_at_once_together_with_the_acks_of_its_lease(in_flight: InFlightTracker[Held]) -> None:
    messages = take(in_flight, 7, 3)
    in_flight.ack(messages[0])
    in_flight.fail(messages[1], RETRY)
    parcel = in_flight.collect(0.0)
    assert parcel is not None
    assert parcel.settlement == Settlement(leases=[7, 7], seqs=[2, 1], failures=[RETRY, None])
    assert parcel.keys == ["key2"]
    assert in_flight.settled(parcel, []) == []
    in_flight.ack(messages[2])
    last = in_flight.collect(0.0)
    assert last is not None
    assert last.settlement.whole == [7]


def test_a_lease_is_not_settled_whole_while_a_failure_is_not_settled(
    in_flight: InFlightTracker[Held],
) -> None:
    messages = take(in_flight, 7, 2)
    in_flight.fail(messages[0], RETRY)
    in_flight.ack(messages[1])
    parcel = in_flight.collect(0.0)
    assert parcel is not None
    assert parcel.settlement == Settlement(leases=[7, 7], seqs=[1, 2], failures=[RETRY, None])


def test_messages_of_a_lost_lease_are_neither_settled_nor_held(in_flight: InFlightTracker[Held]) -> None:
    first, second = take(in_flight, 7, 2)
    assert in_flight.extended([first.lease], [], 60.0) == [first.lease]
    in_flight.lose(first.lease)
    assert first.lease.lost
    in_flight.ack(first)
    in_flight.fail(second, RELEASE)
    parcel = in_flight.collect(0.0)
    assert parcel is not None
    assert not parcel.settlement
    assert parcel.keys == [second.lane], "its key is closed all the same, and waits to be opened"
    in_flight.settled(parcel, [])
    assert in_flight.held == 0


def test_an_extension_that_misses_a_lease_settled_meanwhile_does_not_call_it_lost(
    in_flight: InFlightTracker[Held],
) -> None:
    (only,) = take(in_flight, 7, 1)
    in_flight.ack(only)
    assert in_flight.extended([only.lease], [], 60.0) == []
    assert not only.lease.lost


def test_a_lease_that_is_done_waits_for_an_earlier_message_of_its_key_that_lingers(
    in_flight: InFlightTracker[Held],
) -> None:
    one, _ = take_keys(in_flight, 70, "kx", first=1)
    (seven,) = take_keys(in_flight, 71, "k", first=7)
    in_flight.ack(one)
    assert in_flight.collect(0.0) is None
    in_flight.ack(seven)
    assert in_flight.collect(0.02) is None
    assert in_flight.due == LINGER
    parcel = in_flight.collect(LINGER)
    assert parcel is not None
    assert parcel.settlement == Settlement(whole=[71], leases=[70], seqs=[1], failures=[None])


def test_waiting_leases_are_settled_as_soon_as_the_messages_before_them_are_done(
    in_flight: InFlightTracker[Held],
) -> None:
    one, two = take_keys(in_flight, 70, "kx", first=1)
    (seven,) = take_keys(in_flight, 71, "k", first=7)
    in_flight.ack(one)
    in_flight.ack(seven)
    assert in_flight.collect(0.0) is None
    in_flight.ack(two)
    parcel = in_flight.collect(0.01)
    assert parcel is not None
    assert sorted(parcel.settlement.whole) == [70, 71]


def test_a_lease_that_is_done_waits_for_one_that_waits(in_flight: InFlightTracker[Held]) -> None:
    one, _ = take_keys(in_flight, 70, "kx", first=1)
    seven, eight = take_keys(in_flight, 71, "kj", first=7)
    (nine,) = take_keys(in_flight, 72, "j", first=9)
    for message in (one, seven, eight, nine):
        in_flight.ack(message)
    assert in_flight.collect(0.0) is None
    parcel = in_flight.collect(LINGER)
    assert parcel is not None
    assert sorted(parcel.settlement.whole) == [71, 72]


def test_leases_of_other_keys_wait_for_nothing(in_flight: InFlightTracker[Held]) -> None:
    one, _ = take_keys(in_flight, 70, "kx", first=1)
    (seven,) = take_keys(in_flight, 71, "j", first=7)
    in_flight.ack(one)
    in_flight.ack(seven)
    parcel = in_flight.collect(0.0)
    assert parcel is not None
    assert parcel.settlement == Settlement(whole=[71])


@pytest.mark.parametrize("failure", [RETRY, REJECT])
def test_a_failure_is_settled_together_with_earlier_outcomes(
    in_flight: InFlightTracker[Held], failure: Failure
) -> None:
    one, _ = take_keys(in_flight, 70, "kx", first=1)
    seven, _ = take_keys(in_flight, 71, "ky", first=7)
    in_flight.ack(one)
    in_flight.fail(seven, failure)
    parcel = in_flight.collect(0.0)
    assert parcel is not None
    assert parcel.settlement == Settlement(leases=[71, 70], seqs=[7, 1], failures=[failure, None])


def test_a_message_that_was_settled_before_loses_nothing_else_of_its_lease(in_flight: InFlightTracker[Held]) -> None:
    one, two = take(in_flight, 7, 2)
    in_flight.fail(one, RETRY)
    parcel = in_flight.collect(0.0)
    assert parcel is not None
    assert in_flight.settled(parcel, [Lost(7, 1, gone=False)]) == []
    assert in_flight.lost == 1
    assert not two.lease.lost
    in_flight.ack(two)
    last = in_flight.collect(0.0)
    assert last is not None
    assert last.settlement.whole == [7]


def test_messages_without_an_answer_from_the_store_are_unsettled(in_flight: InFlightTracker[Held]) -> None:
    one, two, _ = take_keys(in_flight, 7, "abc", first=1)
    assert not in_flight.unsettled("a")
    in_flight.ack(one)
    assert in_flight.unsettled("a"), "it lingers"
    assert in_flight.collect(0.0) is None
    parcel = in_flight.collect(LINGER)
    assert parcel is not None
    assert in_flight.unsettled("a"), "it is on its way"
    in_flight.settled(parcel, [])
    assert not in_flight.unsettled("a")
    two.lease.note_durable(two.seq)
    in_flight.ack(two)
    assert not in_flight.unsettled("b"), "a transaction has committed it"


def test_an_expired_message_is_settled_like_an_ack_and_counted_apart(in_flight: InFlightTracker[Held]) -> None:
    first, second = take(in_flight, 7, 2)
    in_flight.ack(first)
    in_flight.expire(second)
    parcel = in_flight.collect(0.0)
    assert parcel is not None
    assert parcel.settlement.whole == [7]
    assert (in_flight.acked, in_flight.expired) == (1, 1)
