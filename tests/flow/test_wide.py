"""Wide lanes: a limited number of a key's messages is handled at the same time, no actor is idle
while one of them could be handled, and none is lost. Messages of a consumer that has become ordered
meanwhile are handled one at a time, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.flow.wide import WideLanes

KEYS = ("a", "b", "c")
LANES: list[Hashable] = [*WideLanes(1).names(KEYS, (), False), *WideLanes(1).names(KEYS, (), True)]


class Item(NamedTuple):
    lane: Hashable
    seq: int


class WideLanesMachine(RuleBasedStateMachine):
    """Messages arrive, actors take lanes and continue in them, and some release their messages, in any order."""

    lanes: WideLanes[Item]

    def __init__(self) -> None:
        super().__init__()
        self.lows = self.woken = self.seq = 0
        self.waiting: Counter[Hashable] = Counter()
        self.actors: list[Item] = []  # the latest message of each
        self.seen: Counter[int] = Counter()
        self.latest: dict[Hashable, int] = {}  # of each lane, the seq of the message that left it last

    @initialize(width=st.integers(1, 3), low=st.integers(0, 3))
    def set_up(self, width: int, low: int) -> None:
        self.width = width
        self.lanes = WideLanes(width)
        self.lanes.low_water = low
        self.lanes.on_low.connect(self.note_low)
        self.lanes.on_ready.connect(self.note_ready)

    def note_low(self) -> None:
        self.lows += 1

    def note_ready(self) -> None:
        self.woken += 1

    def width_of(self, lane: Hashable) -> int:
        return 1 if lane in KEYS else self.width

    @rule(names=st.lists(st.sampled_from(LANES), max_size=8))
    def messages_come(self, names: list[Hashable]) -> None:
        items = [Item(name, self.seq + place) for place, name in enumerate(names, 1)]
        self.seq += len(items)
        self.lanes.begin_call()
        assert self.lanes.add(items) == []
        self.waiting.update(names)

    @rule()
    def an_actor_takes_a_lane(self) -> None:
        before, lows, woken = self.lanes.waiting, self.lows, self.woken
        item = self.lanes.take()
        if item is None:
            assert not self.free
            return
        self.begins(item, before, lows, woken)

    def begins(self, item: Item, before: int, lows: int, woken: int) -> None:
        """An actor has taken another lane."""
        assert item.lane in self.free
        self.actors.append(item)
        self.leaves(item)
        self.check_low(before, lows)
        assert self.woken == woken + bool(self.free), "there is work for another, and nobody was told"

    @precondition(lambda self: self.actors)
    @rule(data=st.data(), onward=st.booleans())
    def an_actor_goes_on(self, data: st.DataObject, onward: bool) -> None:
        done = data.draw(st.sampled_from(self.actors))
        before, lows, woken = self.lanes.waiting, self.lows, self.woken
        item = self.lanes.next(done, onward)
        self.actors.remove(done)
        if self.waiting[done.lane]:
            assert item is not None
            assert item.lane == done.lane
            self.actors.append(item)
            self.leaves(item)
            self.check_low(before, lows)
        elif item is None:
            assert not (onward and self.free)
        else:
            assert onward
            self.begins(item, before, lows, woken)

    def check_low(self, before: int, lows: int) -> None:
        if before > self.lanes.low_water >= self.lanes.waiting:
            assert self.lows > lows

    @precondition(lambda self: self.actors)
    @rule(data=st.data())
    def a_message_fails(self, data: st.DataObject) -> None:
        """In a plain lane, the messages behind it go back, too."""
        lane = data.draw(st.sampled_from(self.actors)).lane
        behind = self.lanes.close(lane)
        assert len(behind) == (self.waiting[lane] if lane in KEYS else 0)
        for item in behind:
            self.leaves(item)
        self.lanes.give_back(lane)
        if lane in KEYS:
            self.lanes.begin_call()
            late = [Item(lane, self.seq + 1)]
            assert self.lanes.add(late) == late
        self.lanes.confirm([lane])

    @precondition(lambda self: self.actors)
    @rule(data=st.data())
    def an_actor_returns_its_lane(self, data: st.DataObject) -> None:
        done = data.draw(st.sampled_from(self.actors))
        woken = self.woken
        self.lanes.return_lanes([done.lane])
        self.actors.remove(done)
        assert self.woken > woken or done.lane not in self.free, "there is work for another, and nobody was told"

    @rule()
    def all_is_cleared(self) -> None:
        for item in self.lanes.clear():
            self.leaves(item)
        assert not +self.waiting
        assert self.lanes.take() is None

    @property
    def free(self) -> set[Hashable]:
        """The lanes of which one more message could be handled."""
        at_work = Counter(item.lane for item in self.actors)
        return {lane for lane, count in self.waiting.items() if count and at_work[lane] < self.width_of(lane)}

    def leaves(self, item: Item) -> None:
        assert self.latest.get(item.lane, 0) < item.seq
        self.latest[item.lane] = item.seq
        self.waiting[item.lane] -= 1
        self.seen[item.seq] += 1
        assert self.seen[item.seq] == 1

    @invariant()
    def counts_are_right(self) -> None:
        at_work = Counter(item.lane for item in self.actors)
        assert all(count <= self.width_of(lane) for lane, count in at_work.items())
        if hasattr(self, "lanes"):
            assert self.lanes.ready == len(self.free)
            assert self.lanes.waiting == self.waiting.total()
            assert self.lanes.empty == (not self.actors and not self.lanes.waiting)
            lanes = {item.lane for item in self.actors} | {key for key, count in self.waiting.items() if count}
            assert self.lanes.statistics() == {
                "lanes": len(lanes), "ready": len(self.free), "waiting": self.waiting.total(), "closed": 0,
            }  # fmt: skip

    def teardown(self) -> None:
        """Whatever happened before, every waiting message leaves the lanes once in the end."""
        while self.actors or self.free:
            self.an_actor_takes_a_lane()
            for done in self.actors[:]:
                item: Item | None = done
                while (item := self.lanes.next(item)) is not None:
                    self.leaves(item)
                self.actors.remove(done)
        assert self.seen.total() == self.seq


TestWideLanes = WideLanesMachine.TestCase
