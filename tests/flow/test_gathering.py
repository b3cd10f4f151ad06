"""Gathering: a batch fills in the order of each key from the ready lanes, and no other actor takes
those lanes in the meantime."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Hashable
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.flow.gathering import Gathering
from headrace.flow.lanes import Lanes

KEYS = ("a", "b", "c", "d")
SIZE = 10


class Item(NamedTuple):
    lane: str
    seq: int


class GatheringMachine(RuleBasedStateMachine):
    """Messages arrive, batches begin, wait to fill, and end, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: Lanes[Item] = Lanes()
        self.lanes.on_more.connect(self.fill)
        self.filling: list[Gathering[Item]] = []
        self.at_work: list[Gathering[Item]] = []
        self.seq = 0
        self.done: dict[str, list[int]] = defaultdict(list)

    @initialize(
        limit=st.integers(1, 5),
        one_key=st.booleans(),
        patient=st.booleans(),
        max_size=st.one_of(st.none(), st.integers(1, 50)),
    )
    def set_up(self, limit: int, one_key: bool, patient: bool, max_size: int | None) -> None:
        self.limit, self.one_key, self.patient, self.max_size = limit, one_key, patient, max_size

    def fill(self) -> None:
        for batch in list(self.filling):
            batch.fill()
            if batch.over:
                self.begin(batch)

    def begin(self, batch: Gathering[Item]) -> None:
        if batch in self.filling:
            self.filling.remove(batch)
        self.at_work.append(batch)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=8))
    def messages_come(self, keys: list[str]) -> None:
        items = [Item(key, self.seq + place) for place, key in enumerate(keys, 1)]
        self.seq += len(items)
        self.lanes.begin_call()
        assert self.lanes.add(items) == []

    @rule()
    def an_actor_begins_a_batch(self) -> None:
        first = self.lanes.take()
        if first is None:
            return
        batch = Gathering(
            self.lanes, first, self.limit, one_key=self.one_key, max_size=self.max_size, size_of=lambda _: SIZE
        )
        assert batch.messages
        if self.patient and not batch.over:
            self.filling.append(batch)
        else:
            self.at_work.append(batch)

    @precondition(lambda self: self.filling)
    @rule(data=st.data())
    def the_wait_is_over(self, data: st.DataObject) -> None:
        self.begin(data.draw(st.sampled_from(self.filling)))

    @precondition(lambda self: self.at_work)
    @rule(data=st.data())
    def a_batch_is_done(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.at_work))
        self.at_work.remove(batch)
        for item in batch.messages:
            self.done[item.lane].append(item.seq)
        batch.return_lanes()

    @invariant()
    def batches_keep_within_their_limit(self) -> None:
        for batch in self.filling + self.at_work:
            assert 1 <= len(batch.messages) <= self.limit
            assert self.max_size is None or (len(batch.messages) - 1) * SIZE < self.max_size
            assert not self.one_key or len({item.lane for item in batch.messages}) == 1

    @invariant()
    def no_key_is_in_two_batches(self) -> None:
        keys = [key for batch in self.filling + self.at_work for key in {item.lane for item in batch.messages}]
        assert len(keys) == len(set(keys))

    @invariant()
    def only_one_fills_and_it_has_all_there_is(self) -> None:
        if self.filling and not self.one_key:
            assert len(self.filling) == 1
            assert self.lanes.ready == 0

    @invariant()
    def keys_are_handled_in_order(self) -> None:
        for seqs in self.done.values():
            assert seqs == sorted(seqs)

    def teardown(self) -> None:
        """Whatever happened before, every message is handled once in the end."""
        while self.at_work or self.filling or self.lanes.ready:
            self.an_actor_begins_a_batch()
            for batch in self.filling[:]:
                self.begin(batch)
            for batch in self.at_work[:]:
                self.at_work.remove(batch)
                for item in batch.messages:
                    self.done[item.lane].append(item.seq)
                batch.return_lanes()
        self.keys_are_handled_in_order()
        assert sorted(seq for seqs in self.done.values() for seq in seqs) == list(range(1, self.seq + 1))
        assert self.lanes.empty


TestGathering = GatheringMachine.TestCase


def test_a_batch_takes_new_messages_of_its_own_keys_before_other_keys() -> None:
    lanes: Lanes[Item] = Lanes()
    lanes.add([Item("a", 1)])
    first = lanes.take()
    assert first is not None
    batch = Gathering(lanes, first, 3, one_key=False)
    lanes.add([Item("b", 2), Item("a", 3), Item("a", 4), Item("a", 5)])
    batch.fill()
    assert [item.seq for item in batch.messages] == [1, 3, 4]
    assert (lanes.ready, lanes.waiting) == (1, 2)


def test_when_all_is_cleared_no_batch_waits_any_longer() -> None:
    lanes: Lanes[Item] = Lanes()
    lanes.add([Item("a", 1)])
    first = lanes.take()
    assert first is not None
    batch = Gathering(lanes, first, 3, one_key=False)
    told = []
    lanes.on_more.connect(lambda: told.append(batch.over))
    lanes.clear()
    assert told == [True]
    assert batch.messages == [Item("a", 1)]


def test_a_batch_that_fills_reads_only_lanes_that_have_more() -> None:
    class Counted(Lanes[Item]):
        looks = 0

        def take_run(self, lane: Hashable, limit: int) -> list[Item]:
            self.looks += 1
            return super().take_run(lane, limit)

    lanes = Counted()
    lanes.add([Item("a", 1)])
    first = lanes.take()
    assert first is not None
    batch = Gathering(lanes, first, 10_000, one_key=False)
    lanes.on_more.connect(batch.fill)
    for call in range(100):
        lanes.add([Item("a", 2 + call), *(Item(f"{call}.{place}", 1) for place in range(10))])
    assert len(batch.messages) == 1101
    assert lanes.looks == 101


def test_a_batch_completes_the_oldest_leases() -> None:
    """A lease that is partly done costs the store a rewrite. Here each batch leaves at most two of them so, of ten or more."""
    draw = random.Random(1)
    lanes: Lanes[Item] = Lanes()
    arrived = 0

    def leased(count: int) -> None:
        nonlocal arrived
        for _ in range(count):
            lanes.add([Item(str(draw.randrange(2000)), arrived + place) for place in range(100)])
            arrived += 100

    leased(11)
    done: Counter[int] = Counter()
    for _ in range(20):
        first = lanes.take()
        assert first is not None
        batch = Gathering(lanes, first, 1000, one_key=False)
        assert len(batch.messages) == 1000
        leased(10)  # while the handler runs
        done.update(item.seq // 100 for item in batch.messages)
        batch.return_lanes()
        assert sum(0 < messages < 100 for messages in done.values()) <= 2


def test_the_oldest_message_of_returned_and_new_lanes_is_next() -> None:
    lanes: Lanes[Item] = Lanes()
    lanes.add([Item("hot", seq) for seq in (1, 2, 3, 6, 9)])
    taken = []
    for seq in (4, 5, 7, 8):
        lanes.add([Item(str(seq), seq)])
    while (item := lanes.take()) is not None:
        taken.append(item.seq)
        lanes.return_lanes([item.lane])
    assert taken == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_returned_lane_with_the_newest_messages_is_taken_soon() -> None:
    """After a seek back, nothing that comes is as new as they are."""
    lanes: Lanes[Item] = Lanes()
    lanes.add([Item("a", 10**9), Item("a", 10**9 + 1)])
    assert lanes.take() == Item("a", 10**9)
    lanes.add([Item(str(seq), seq) for seq in range(20)])
    lanes.return_lanes(["a"])
    assert Item("a", 10**9 + 1) in [lanes.take() for _ in range(8)]
