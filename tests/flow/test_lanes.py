"""Lanes: each key's messages in order, one actor at a time, and no message overtakes an earlier one
that was released."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.flow.lanes import Lanes

KEYS = ("a", "b", "c")


class Item(NamedTuple):
    lane: str
    seq: int


class Actor:
    """An actor with a lane, its latest message, and whether that has failed."""

    def __init__(self, first: Item) -> None:
        self.lane = first.lane
        self.at = first
        self.failed = False


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
        self.lanes.on_drained.connect(self.note_drained)
        self.more = self.woken = self.drained = 0
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

    def note_drained(self) -> None:
        self.drained += 1

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
        before, lows, drained = self.lanes.waiting, self.lows, self.drained
        first = self.lanes.take()
        if first is None:
            assert not self.free
        else:
            self.begins(first, before, lows, drained)

    def begins(self, first: Item, before: int, lows: int, drained: int) -> None:
        """An actor has taken another lane."""
        assert first.lane in self.free, "a lane without messages, or one that another actor has"
        assert first == self.waiting[first.lane].popleft()
        self.actors.append(Actor(first))
        self.leaves(first)
        self.check_low(before, lows)
        assert self.drained == drained + (not self.free)

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), onward=st.booleans())
    def an_actor_goes_on(self, data: st.DataObject, onward: bool) -> None:
        actor = data.draw(st.sampled_from(self.actors))
        waiting, before, lows, drained = self.waiting[actor.lane], self.lanes.waiting, self.lows, self.drained
        item = self.lanes.next(actor.at, onward)
        if waiting:
            assert item == waiting.popleft()
            actor.at, actor.failed = item, False
            self.leaves(item)
            self.check_low(before, lows)
            return
        self.actors.remove(actor)
        if item is None:
            assert not (onward and self.free)
        else:
            assert onward
            self.begins(item, before, lows, drained)

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), limit=st.integers(0, 4))
    def an_actor_takes_a_run(self, data: st.DataObject, limit: int) -> None:
        actor = data.draw(st.sampled_from(self.actors))
        waiting, before, lows = self.waiting[actor.lane], self.lanes.waiting, self.lows
        run = self.lanes.take_run(actor.lane, limit)
        assert run == [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        for actor.at in run:
            actor.failed = False
            self.leaves(actor.at)
        self.check_low(before, lows)

    @precondition(lambda self: self.actors)
    @rule(data=st.data())
    def an_actor_puts_its_lane_down(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from(self.actors))
        more, woken = self.more, self.woken
        self.lanes.return_lanes([actor.lane])
        self.actors.remove(actor)
        if self.waiting[actor.lane]:
            assert (self.more, self.woken) == (more + 1, woken + 1), "a lane is ready again, and nobody was told"

    @precondition(lambda self: not all(actor.failed for actor in self.actors))
    @rule(data=st.data())
    def a_message_fails(self, data: st.DataObject) -> None:
        actor = data.draw(st.sampled_from([actor for actor in self.actors if not actor.failed]))
        failed, actor.failed = actor.at, True
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

    @precondition(lambda self: self.lanes.waiting and not self.free)
    @rule(keep=st.integers(0, 8))
    def lanes_in_work_are_trimmed(self, keep: int) -> None:
        before, lows = self.lanes.waiting, self.lows
        taken = self.lanes.trim(keep)
        assert self.lanes.waiting == min(before, keep)
        for key, waiting in self.waiting.items():
            lost = [item for item in taken if item.lane == key]
            assert [waiting.pop() for _ in lost] == lost[::-1], "not the last messages of the lane"
        for item in taken:
            self.leaves(item)
        self.check_low(before, lows)
        self.give_back(taken)

    @rule()
    def ready_lanes_are_taken_out(self) -> None:
        before, lows, drained, free = self.lanes.waiting, self.lows, self.drained, self.free
        taken = self.lanes.take_ready()
        for key in free:
            assert [item for item in taken if item.lane == key] == list(self.waiting.pop(key))
        for item in taken:
            assert item.lane in free
            self.leaves(item)
        assert self.drained > drained
        self.check_low(before, lows)
        self.give_back(taken)
        assert self.lanes.take() is None

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

    @property
    def free(self) -> set[str]:
        """The keys of the lanes that wait for an actor."""
        return {key for key, waiting in self.waiting.items() if waiting} - {actor.lane for actor in self.actors}

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
        running = {actor.lane for actor in self.actors}
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
        assert max(Counter(actor.lane for actor in self.actors).values(), default=0) <= 1

    def teardown(self) -> None:
        """Whatever happened before, every waiting message leaves the lanes once in the end."""
        expected = [item for waiting in self.waiting.values() for item in waiting]
        found = []
        for actor in self.actors:
            found += rest(self.lanes, actor.at)
        while (first := self.lanes.take()) is not None:
            found += (first, *rest(self.lanes, first))
        assert sorted(found) == sorted(expected)
        assert self.lanes.empty


LanesMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestLanes = LanesMachine.TestCase


def items(*texts: str) -> list[Item]:
    return [Item(text[0], int(text[1:])) for text in texts]


def rest(lanes: Lanes[Item], item: Item) -> list[Item]:
    """Work off what is behind a message in its lane."""
    found = []
    following: Item | None = item
    while (following := lanes.next(following)) is not None:
        found.append(following)
    return found


def test_messages_of_a_key_that_come_while_its_lane_is_worked_on_join_it() -> None:
    lanes: Lanes[Item] = Lanes()
    lanes.add(items("a1", "a2"))
    first = lanes.take()
    assert first == Item("a", 1)
    lanes.add(items("a3", "b4"))
    assert rest(lanes, first) == items("a2", "a3")
    other = lanes.take()
    assert other == Item("b", 4)
    assert rest(lanes, other) == []
    assert lanes.take() is None


def test_an_actor_that_goes_onward_takes_other_lanes_after_its_own() -> None:
    lanes: Lanes[Item] = Lanes()
    lanes.add(items("a1", "b2", "a3"))
    found, item = [], lanes.take()
    while item is not None:
        found.append(item.seq)
        item = lanes.next(item, onward=True)
    assert found == [1, 3, 2]
    assert lanes.empty


def test_the_longest_lanes_are_trimmed() -> None:
    lanes: Lanes[Item] = Lanes()
    lanes.add(items("a1", "b2", "c3", "a4", "b5", "c6", "b7", "c8", "c9", "c10", "c11"))
    assert [lanes.take() for _ in range(3)] == items("a1", "b2", "c3")
    assert lanes.trim(8) == []
    assert lanes.trim(6) == items("c10", "c11")
    assert lanes.trim(4) == items("b7", "c9")
    assert lanes.trim(1) == items("a4", "b5", "c8")


def test_messages_of_a_key_that_was_confirmed_during_the_lease_call_are_refused() -> None:
    lanes: Lanes[Item] = Lanes()
    lanes.add(items("a1"))
    assert lanes.take() == Item("a", 1)
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
