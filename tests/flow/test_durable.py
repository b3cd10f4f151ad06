"""Durable lanes: one message or one batch of each key is handled at a time, and no message is lost
while its lane waits for a settlement."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.flow.durable import DurableLanes

KEYS = ("a", "b")


class Item(NamedTuple):
    lane: str
    seq: int


class DurableMachine(RuleBasedStateMachine):
    """Actors that take single messages or runs, in any order with the settlements of those."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: DurableLanes[Item] = DurableLanes()
        self.seq = 0
        self.singles: dict[str, Item] = {}  # of lanes with an actor that handles one message at a time, the latest
        self.batches: set[str] = set()  # lanes with an actor that handles a batch
        self.out: dict[str, set[int]] = defaultdict(set)  # given to an actor and not settled
        self.order: dict[str, list[int]] = defaultdict(list)
        self.given_back: set[int] = set()

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4))
    def messages_come(self, keys: list[str]) -> None:
        self.lanes.begin_call()
        self.lanes.add([Item(key, self.seq + place) for place, key in enumerate(keys, 1)])
        self.seq += len(keys)

    @rule(batch=st.booleans(), limit=st.integers(1, 3))
    def an_actor_takes_a_lane(self, batch: bool, limit: int) -> None:
        first = self.lanes.take()
        if first is None:
            return
        self.begins(first)
        if batch:
            del self.singles[first.lane]
            self.batches.add(first.lane)
            self.hand_out(first.lane, self.lanes.take_run(first.lane, limit - 1))

    def begins(self, first: Item) -> None:
        """An actor has taken a lane."""
        assert not self.out[first.lane], "the message before is not settled"
        assert first.lane not in self.batches | self.singles.keys()
        self.singles[first.lane] = first
        self.hand_out(first.lane, [first])

    @precondition(lambda self: self.singles)
    @rule(data=st.data(), onward=st.booleans())
    def an_actor_goes_on(self, data: st.DataObject, onward: bool) -> None:
        item = self.lanes.next(self.singles.pop(data.draw(st.sampled_from(sorted(self.singles)))), onward)
        if item is not None:
            self.begins(item)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def a_batch_is_done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.batches)))
        self.batches.remove(key)
        self.lanes.return_lanes([key])

    @precondition(lambda self: any(self.out.values()))
    @rule(data=st.data())
    def one_is_settled(self, data: st.DataObject) -> None:
        key, seq = data.draw(st.sampled_from(sorted((key, seq) for key, out in self.out.items() for seq in out)))
        self.out[key].remove(seq)
        self.lanes.settled([(key, seq)])

    @precondition(lambda self: self.singles or self.batches)
    @rule(data=st.data())
    def waiting_messages_are_released(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.batches | self.singles.keys())))
        self.are_given_back(self.lanes.close(key))

    @precondition(lambda self: self.lanes.waiting and not self.lanes.ready)
    @rule(keep=st.integers(0, 4))
    def lanes_in_work_are_trimmed(self, keep: int) -> None:
        before = self.lanes.waiting
        self.are_given_back(self.lanes.trim(keep))
        assert self.lanes.waiting == min(before, keep)

    def are_given_back(self, items: list[Item]) -> None:
        """The store has taken these back."""
        self.given_back |= {item.seq for item in items}
        self.lanes.settled((item.lane, item.seq) for item in items)

    def hand_out(self, key: str, run: list[Item]) -> None:
        for item in run:
            assert item.lane == key
            self.order[key].append(item.seq)
            self.out[key].add(item.seq)

    @invariant()
    def order_holds(self) -> None:
        for seqs in self.order.values():
            assert seqs == sorted(set(seqs))

    def teardown(self) -> None:
        """Waiting lanes continue once their messages are settled, until no message is left."""
        for _ in range(2 * self.seq + 2):
            while self.batches:
                self.lanes.return_lanes([self.batches.pop()])
            while self.singles:
                _, item = self.singles.popitem()
                following = self.lanes.next(item)
                if following is not None:
                    self.begins(following)
            for key, out in self.out.items():
                self.lanes.settled([(key, seq) for seq in out])
                out.clear()
            while (first := self.lanes.take()) is not None:
                self.begins(first)
        assert self.lanes.empty
        assert self.lanes.waiting == 0
        assert self.lanes.statistics()["resting"] == 0
        handed_out = {seq for seqs in self.order.values() for seq in seqs}
        assert handed_out | self.given_back == set(range(1, self.seq + 1))


DurableMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestDurableLanes = DurableMachine.TestCase
