"""Lanes: each key's messages in order, one actor at a time, and no message overtakes an earlier one
that was released."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.flow.lanes import Lane, Lanes

KEYS = ("a", "b", "c")


class Item(NamedTuple):
    lane: str
    seq: int


class Actor:
    """An actor with a lane, and its current message."""

    def __init__(self, lane: Lane[Item]) -> None:
        self.lane = lane
        self.at: Item | None = None


class LanesMachine(RuleBasedStateMachine):
    """Lease calls, actors, failures and confirmations in any order, compared with a naive model of
    where each message must be."""

    def __init__(self) -> None:
        super().__init__()
        self.lows = 0
        self.lanes: Lanes[Item] = Lanes()
        self.lanes.on_low.connect(self.note_low)
        self.lanes.on_more.connect(self.note_more)
        self.lanes.on_ready.connect(self.note_ready)
        self.more = self.woken = 0
        self.seq = 0
        self.call_out = False
        self.waiting: dict[str, deque[Item]] = defaultdict(deque)
        self.actors: list[Actor] = []
        self.parcels: list[list[str]] = []  # releases that the store has not confirmed
        self.barred: set[str] = set()  # confirmed since the call began
        self.fate: Counter[Item] = Counter()  # how often each message has left the lanes, in any way

    def note_low(self) -> None:
        self.lows += 1

    def note_more(self) -> None:
        self.more += 1

    def note_ready(self) -> None:
        self.woken += 1

    @initialize(low=st.integers(0, 4))
    def set_low_water(self, low: int) -> None:
        self.lanes.low_water = low

    # --- what happens

    @precondition(lambda self: not self.call_out)
    @rule()
    def a_lease_call_begins(self) -> None:
        self.lanes.begin_call()
        self.call_out = True

    @precondition(lambda self: self.call_out)
    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=8))
    def a_lease_call_brings(self, keys: list[str]) -> None:
        items = [Item(key, self.seq + place) for place, key in enumerate(keys, 1)]
        self.seq += len(items)
        shut, more = self.closed | self.barred, self.more
        refused = self.lanes.add(items)
        assert self.more == more + 1
        assert refused == [item for item in items if item.lane in shut]
        for item in items:
            if item.lane in shut:
                self.leaves(item)
            else:
                self.waiting[item.lane].append(item)
        self.give_back(refused)
        self.call_out = False
        self.barred.clear()

    @rule()
    def an_actor_takes_a_lane(self) -> None:
        lane = self.lanes.take()
        free = {key for key, waiting in self.waiting.items() if waiting} - {actor.lane.key for actor in self.actors}
        if lane is None:
            assert not free
        else:
            assert lane.key in free, "a lane without messages, or one that another actor has"
            self.actors.append(Actor(lane))

    @precondition(lambda self: self.actors)
    @rule(data=st.data())
    def an_actor_goes_on(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from(self.actors))
        waiting, before, lows = self.waiting[actor.lane.key], self.lanes.waiting, self.lows
        actor.at = self.lanes.next(actor.lane)
        if actor.at is None:
            assert not waiting
            self.actors.remove(actor)
            return
        assert actor.at == waiting.popleft()
        self.leaves(actor.at)
        self.check_low(before, lows)

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), limit=st.integers(0, 4))
    def an_actor_takes_a_run(self, data: st.DataObject, limit: int) -> None:
        actor = data.draw(st.sampled_from(self.actors))
        waiting, before, lows = self.waiting[actor.lane.key], self.lanes.waiting, self.lows
        run = self.lanes.take_run(actor.lane, limit)
        assert run == [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        for actor.at in run:
            self.leaves(actor.at)
        self.check_low(before, lows)

    @precondition(lambda self: self.actors)
    @rule(data=st.data())
    def an_actor_puts_its_lane_down(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from(self.actors))
        more, woken = self.more, self.woken
        self.lanes.return_lane(actor.lane)
        self.actors.remove(actor)
        if self.waiting[actor.lane.key]:
            assert (self.more, self.woken) == (more + 1, woken + 1), "a lane is ready again, and nobody was told"

    @precondition(lambda self: any(actor.at for actor in self.actors))
    @rule(data=st.data())
    def a_message_fails(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from([actor for actor in self.actors if actor.at]))
        failed, actor.at = actor.at, None
        assert failed is not None
        before, lows = self.lanes.waiting, self.lows
        behind = self.lanes.close(failed.lane)
        assert behind == list(self.waiting[failed.lane])
        self.waiting[failed.lane].clear()
        for item in behind:
            self.leaves(item)
        self.check_low(before, lows)
        self.give_back([failed, *behind])

    @precondition(lambda self: self.parcels)
    @rule()
    def the_store_confirms(self) -> None:
        before = self.closed
        parcel = self.parcels.pop(0)
        self.lanes.confirm(parcel)
        if self.call_out:
            self.barred |= before - self.closed

    @rule()
    def all_is_cleared(self) -> None:
        before, lows = self.lanes.waiting, self.lows
        taken = self.lanes.clear()
        by_key: dict[str, list[Item]] = defaultdict(list)
        for item in taken:
            by_key[item.lane].append(item)
            self.leaves(item)
        assert dict(by_key) == {key: list(waiting) for key, waiting in self.waiting.items() if waiting}
        self.waiting.clear()
        self.check_low(before, lows)
        self.give_back(taken)
        assert self.lanes.take() is None

    # --- what must hold

    @property
    def closed(self) -> set[str]:
        return {key for parcel in self.parcels for key in parcel}

    def give_back(self, items: list[Item]) -> None:
        for item in items:
            self.lanes.give_back(item.lane)
        if items:
            self.parcels.append([item.lane for item in items])

    def leaves(self, item: Item) -> None:
        self.fate[item] += 1
        assert self.fate[item] == 1, f"{item} was handed out twice"

    def check_low(self, before: int, lows: int) -> None:
        low = self.lanes.low_water
        if before > low >= self.lanes.waiting:
            assert self.lows > lows, "low water was reached, and nobody was told"

    @invariant()
    def counts_are_right(self) -> None:
        running = {actor.lane.key for actor in self.actors}
        assert self.lanes.waiting == sum(map(len, self.waiting.values()))
        assert self.lanes.ready == sum(1 for key, waiting in self.waiting.items() if waiting and key not in running)
        assert self.lanes.empty == (not running and not self.lanes.waiting)
        assert self.lanes.statistics() == {
            "lanes": self.lanes.ready + len(running),
            "ready": self.lanes.ready,
            "waiting": self.lanes.waiting,
            "closed": len(self.closed) + len(self.barred),
        }

    @invariant()
    def one_actor_is_in_a_lane(self) -> None:
        assert max(Counter(actor.lane.key for actor in self.actors).values(), default=0) <= 1

    def teardown(self) -> None:
        """Whatever happened before, every waiting message leaves the lanes once in the end."""
        expected = [item for waiting in self.waiting.values() for item in waiting]
        found = []
        for actor in self.actors:
            while (item := self.lanes.next(actor.lane)) is not None:
                found.append(item)
        while (lane := self.lanes.take()) is not None:
            while (item := self.lanes.next(lane)) is not None:
                found.append(item)
        assert sorted(found) == sorted(expected)
        assert self.lanes.empty


LanesMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestLanes = LanesMachine.TestCase


def items(*texts: str) -> list[Item]:
    return [Item(text[0], int(text[1:])) for text in texts]


def run(lanes: Lanes[Item], lane: Lane[Item]) -> list[int]:
    found = []
    while (item := lanes.next(lane)) is not None:
        found.append(item.seq)
    return found


def test_messages_of_a_key_that_come_while_its_lane_is_worked_on_join_it() -> None:
    lanes: Lanes[Item] = Lanes()
    lanes.add(items("a1", "a2"))
    lane = lanes.take()
    assert lane is not None
    assert lanes.next(lane) == Item("a", 1)
    lanes.add(items("a3", "b4"))
    assert run(lanes, lane) == [2, 3]
    other = lanes.take()
    assert other is not None
    assert run(lanes, other) == [4]
    assert lanes.take() is None


def test_messages_of_a_key_that_was_confirmed_during_the_lease_call_are_refused() -> None:
    lanes: Lanes[Item] = Lanes()
    lanes.add(items("a1"))
    lane = lanes.take()
    assert lane is not None
    lanes.next(lane)
    lanes.begin_call()  # a lease call that began while this process still held the key
    lanes.give_back("a")
    lanes.confirm(["a"])  # message 1 is back in the store before the call has ended
    assert lanes.add(items("a2", "b3")) == items("a2")
    lanes.begin_call()
    assert lanes.add(items("a1", "a2")) == []


def test_a_key_stays_closed_until_each_of_its_messages_is_confirmed() -> None:
    lanes: Lanes[Item] = Lanes()
    lanes.give_back("a")
    lanes.give_back("a")
    lanes.confirm(["a"])
    assert lanes.add(items("a1")) == items("a1")
    lanes.confirm(["a"])
    assert lanes.add(items("a1")) == []


def test_closing_a_key_without_a_lane_does_nothing() -> None:
    assert Lanes[Item]().close("a") == []
