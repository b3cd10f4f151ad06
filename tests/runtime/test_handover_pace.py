"""When a process looks for others that have no messages."""

from __future__ import annotations

from headrace.runtime.pipeline.handover import HandoverPace


class Looks:
    """The looks of a process, every half second if they are due."""

    def __init__(self) -> None:
        self.pace = HandoverPace()
        self.now = 0.0
        assert self.pace.due(self.now)

    def intervals(self, *, idle: bool, taken_back: bool, looks: int) -> list[float]:
        """Return the seconds from each look to the next one. `idle`: whether it finds an idle process each time."""
        found = []
        for _ in range(looks):
            began = self.now
            self.pace.released(began, [7, 5, 6] if idle else [])
            self.pace.leased(began, [1, 2])
            self.pace.leased(began, [3, 5] if taken_back else [8])
            while not self.pace.due(self.now):
                self.now += 0.5
            found.append(self.now - began)
        return found


def test_it_looks_once_a_second_while_others_take_what_it_releases_or_have_messages() -> None:
    assert Looks().intervals(idle=True, taken_back=False, looks=3) == [1, 1, 1]
    assert Looks().intervals(idle=False, taken_back=False, looks=3) == [1, 1, 1]


def test_it_looks_less_often_while_it_leases_what_it_has_released_itself() -> None:
    process = Looks()
    assert process.intervals(idle=True, taken_back=True, looks=8) == [2, 4, 8, 16, 32, 60, 60, 60]
    assert process.intervals(idle=True, taken_back=False, looks=3) == [60, 1, 1]


def test_it_looks_once_a_second_again_when_the_idle_process_is_gone() -> None:
    process = Looks()
    process.intervals(idle=True, taken_back=True, looks=3)
    assert process.intervals(idle=False, taken_back=False, looks=2) == [1, 1]


def test_a_look_that_fails_is_not_repeated_at_once() -> None:
    pace = HandoverPace()
    assert pace.due(0.0)
    assert not pace.due(0.5)
    assert pace.due(1.0)
