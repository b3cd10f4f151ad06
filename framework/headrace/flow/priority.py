"""Priority: which consumers of a process go first.

While a consumer has lanes that wait for an actor, all consumers of lower priority are limited to
their least concurrency. They are never stopped, because the least concurrency is at least one.
"""

from __future__ import annotations

from collections.abc import Callable


class Rank:
    """The rank of one consumer.

    Attributes:
        priority: a consumer with a higher one goes first.
        pressing: whether the consumer has lanes that wait for an actor.
        held: whether a consumer of higher priority has such lanes, so that this one is limited.
    """

    def __init__(self, priorities: Priorities, priority: int, on_change: Callable[[], None]) -> None:
        self._priorities = priorities
        self._on_change = on_change
        self.priority = priority
        self.pressing = False
        self.held = False

    def press(self, pressing: bool) -> None:
        """Report whether lanes of this consumer wait for an actor."""
        if pressing != self.pressing:
            self.pressing = pressing
            self._priorities.settle()

    def hold(self, held: bool) -> None:
        """Set whether a consumer of higher priority presses."""
        if held != self.held:
            self.held = held
            self._on_change()


class Priorities:
    """The ranks of all consumers of one process."""

    def __init__(self) -> None:
        self._ranks: list[Rank] = []

    @property
    def differ(self) -> bool:
        """Whether the consumers have different priorities."""
        return len({rank.priority for rank in self._ranks}) > 1

    def join(self, priority: int, on_change: Callable[[], None] = lambda: None) -> Rank:
        """Add a consumer, and return its rank. `on_change` is called whenever `held` changes."""
        rank = Rank(self, priority, on_change)
        self._ranks.append(rank)
        self.settle()
        return rank

    def leave(self, rank: Rank) -> None:
        """Remove a consumer that ends. Others no longer give way to it, and it no longer gives way to
        others."""
        if rank in self._ranks:
            self._ranks.remove(rank)
            rank.pressing = False
            self.settle()
            rank.hold(False)

    def settle(self) -> None:
        """Update `held` of each rank."""
        first = max((rank.priority for rank in self._ranks if rank.pressing), default=None)
        for rank in list(self._ranks):
            rank.hold(first is not None and rank.priority < first)
