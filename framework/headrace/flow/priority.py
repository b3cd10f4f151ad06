"""Priority: which consumers of a process go first.

While a consumer has lanes that wait for an actor, all consumers of lower priority keep to their least concurrency. They are never
stopped: the least is at least one.
"""

from __future__ import annotations

from collections.abc import Callable


class Rank:
    """The place of one consumer.

    Attributes:
        priority: a higher one goes first.
        pressing: whether it has lanes that wait for an actor.
        held: whether one of higher priority has.
    """

    def __init__(self, priorities: Priorities, priority: int, on_change: Callable[[], None]) -> None:
        self._priorities = priorities
        self._on_change = on_change
        self.priority = priority
        self.pressing = False
        self.held = False

    def press(self, pressing: bool) -> None:
        """Lanes wait for an actor, or no longer do."""
        if pressing != self.pressing:
            self.pressing = pressing
            self._priorities.settle()

    def hold(self, held: bool) -> None:
        """One of higher priority presses, or no longer does."""
        if held != self.held:
            self.held = held
            self._on_change()


class Priorities:
    """All consumers of one process, in their order."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []

    @property
    def differ(self) -> bool:
        """Whether anybody goes before anybody else."""
        return len({rank.priority for rank in self._ranks}) > 1

    def join(self, priority: int, on_change: Callable[[], None] = lambda: None) -> Rank:
        """A consumer's rank. `on_change` is called when it is held from now on, or no longer."""
        rank = Rank(self, priority, on_change)
        self._ranks.append(rank)
        self.settle()
        return rank

    def leave(self, rank: Rank) -> None:
        """The consumer ends: nobody gives way to it any more, nor it to others."""
        if rank in self._ranks:
            self._ranks.remove(rank)
            rank.pressing = False
            self.settle()
            rank.hold(False)

    def settle(self) -> None:
        """Tell each rank whether it is held."""
        first = max((rank.priority for rank in self._ranks if rank.pressing), default=None)
        for rank in list(self._ranks):
            rank.hold(first is not None and rank.priority < first)
