"""Priority: while a consumer has waiting lanes, all consumers of lower priority are held, and none
of higher priority."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.flow.priority import Priorities


@given(
    priorities=st.lists(st.integers(-3, 3), min_size=1, max_size=6),
    events=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["press", "rest", "leave"])), max_size=40),
)
def test_a_consumer_is_held_exactly_while_one_of_higher_priority_has_waiting_lanes(
    priorities: list[int], events: list[tuple[int, str]]
) -> None:
    house = Priorities()
    told = [False] * len(priorities)

    def note_held(place: int) -> None:
        told[place] = ranks[place].held

    ranks = [house.join(priority, lambda place=place: note_held(place)) for place, priority in enumerate(priorities)]
    there = set(range(len(ranks)))
    assert house.differ == (len(set(priorities)) > 1)
    for chosen, event in events:
        place = chosen % len(ranks)
        match event:
            case "press":
                ranks[place].press(True)
            case "rest":
                ranks[place].press(False)
            case "leave":
                house.leave(ranks[place])
                there.discard(place)
        for other, rank in enumerate(ranks):
            above = any(ranks[each].pressing and ranks[each].priority > rank.priority for each in there)
            assert rank.held == (other in there and above)
            assert told[other] == rank.held


def test_a_consumer_is_notified_once_for_each_change() -> None:
    house, changes = Priorities(), []
    low = house.join(0, lambda: changes.append(low.held))
    first, second = house.join(1), house.join(2)
    first.press(True)
    second.press(True)
    first.press(False)
    assert changes == [True]
    second.press(False)
    assert changes == [True, False]
