"""Durable lanes: one message or one batch of each key is handled at a time, and no message is lost
while its lane waits for a settlement."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.flow.durable import DurableLanes
from headrace.flow.lanes import Lane

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
        self.singles: dict[str, Lane[Item]] = {}  # lanes with an actor that handles one message at a time
        self.batches: dict[str, Lane[Item]] = {}  # lanes with an actor that handles a batch
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
        lane = self.lanes.take()
        if lane is None:
            return
        key = str(lane.key)
        assert not self.out[key], "the message before is not settled"
        if batch:
            self.batches[key] = lane
            self.hand_out(key, self.lanes.take_run(lane, limit))
        else:
            self.singles[key] = lane

    @precondition(lambda self: self.singles)
    @rule(data=st.data())
    def an_actor_goes_on(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.singles)))
        item = self.lanes.next(self.singles[key])
        if item is None:
            del self.singles[key]
        else:
            assert not self.out[key], "the message before is not settled"
            self.hand_out(key, [item])

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def a_batch_is_done(self, data: st.DataObject) -> None:
        self.lanes.return_lane(self.batches.pop(data.draw(st.sampled_from(sorted(self.batches)))))

    @precondition(lambda self: any(self.out.values()))
    @rule(data=st.data())
    def one_is_settled(self, data: st.DataObject) -> None:
        key, seq = data.draw(st.sampled_from(sorted((key, seq) for key, out in self.out.items() for seq in out)))
        self.out[key].remove(seq)
        self.lanes.settled([(key, seq)])

    @rule(key=st.sampled_from(KEYS))
    def waiting_messages_are_released(self, key: str) -> None:
        behind = self.lanes.close(key)
        self.given_back |= {item.seq for item in behind}
        self.lanes.settled((item.lane, item.seq) for item in behind)

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
            for key in list(self.batches):
                self.lanes.return_lane(self.batches.pop(key))
            for key in list(self.singles):
                while (item := self.lanes.next(self.singles[key])) is not None:
                    self.hand_out(key, [item])
                del self.singles[key]
            for key, out in self.out.items():
                self.lanes.settled([(key, seq) for seq in out])
                out.clear()
            while (lane := self.lanes.take()) is not None:
                self.singles[str(lane.key)] = lane
        assert self.lanes.empty
        assert self.lanes.waiting == 0
        assert self.lanes.statistics()["resting"] == 0
        handed_out = {seq for seqs in self.order.values() for seq in seqs}
        assert handed_out | self.given_back == set(range(1, self.seq + 1))


DurableMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestDurableLanes = DurableMachine.TestCase
