"""The messages of one key of one consumer that are leased and not settled, as far as the history tells."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Literal

State = Literal["held", "begun", "returned", "raised", "back"]
"""held: leased, and its handler has not begun. begun, returned, raised: of its handler. back: a settle has put it back, or
has found that its lease was lost.
"""


class Open:
    """A message that was leased and is not settled.

    Attributes:
        early: an earlier message of its key, before whose handler this one's began. That counts once the outcome does.
        lease: the newest lease that has it.
        owner: the owner of that lease.
        attempt: the number of the delivery.
        old: whether the database has crashed or failed over since, so that the number of its lease is not comparable.
        sent: whether its outcome was sent. It may be settled then, and it is none of the messages of its key.
        since: when its state became `back`.
        at: when its lease was known.
        passed: when another owner had a message of its key, which is allowed only if this lease was over.
    """

    __slots__ = ("at", "attempt", "early", "key", "lease", "old", "owner", "passed", "sent", "seq", "since", "state")

    def __init__(self, seq: int, key: str, lease: int, owner: str, attempt: int, at: float) -> None:
        self.seq = seq
        self.key = key
        self.lease = lease
        self.owner = owner
        self.attempt = attempt
        self.at = at
        self.old = self.sent = False
        self.early = 0
        self.state: State = "held"
        self.since = 0.0
        self.passed: float | None = None


class Key:
    """The open messages of a key.

    Attributes:
        messages: by seq.
        run: the run of a handler that works on the key: the number of the file, and that of the run.
    """

    __slots__ = ("_back", "_opened", "_owners", "_waiting", "messages", "run")

    def __init__(self) -> None:
        self.messages: dict[int, Open] = {}
        self.run: tuple[int, int] | None = None
        self._owners: Counter[str] = Counter()
        self._back = 0
        self._opened: list[tuple[int, int]] = []  # heaps of seq and lease, with some that are over
        self._waiting: list[tuple[int, int]] = []

    def add(self, message: Open) -> None:
        self.remove(message.seq)
        self.messages[message.seq] = message
        self._owners[message.owner] += 1
        self._back += message.state == "back"
        heapq.heappush(self._opened, (message.seq, message.lease))
        heapq.heappush(self._waiting, (message.seq, message.lease))

    def remove(self, seq: int) -> None:
        if (message := self.messages.pop(seq, None)) is not None:
            self._owners[message.owner] -= 1
            if not self._owners[message.owner]:
                del self._owners[message.owner]
            self._back -= message.state == "back"

    def change(self, message: Open, state: State, at: float = 0.0) -> None:
        """Change the state of a message of this key."""
        if self.messages.get(message.seq) is message:
            self._back += (state == "back") - (message.state == "back")
        message.state, message.since = state, at

    def others(self, owner: str) -> Iterator[Open]:
        """Yield the messages that another owner has, or that were put back."""
        if self._back or len(self._owners) > (owner in self._owners):
            yield from (one for one in self.messages.values() if one.owner != owner or one.state == "back")

    def first(self) -> Open | None:
        """Return the first open message."""
        return self._first(self._opened, ("held", "begun", "returned", "raised", "back"))

    def first_waiting(self) -> Open | None:
        """Return the first message whose handler has not returned, and does not run."""
        return self._first(self._waiting, ("held", "raised", "back"))

    def _first(self, heap: list[tuple[int, int]], states: tuple[State, ...]) -> Open | None:
        while heap:
            seq, lease = heap[0]
            message = self.messages.get(seq)
            if message is not None and message.lease == lease and message.state in states:
                return message
            heapq.heappop(heap)
        return None

    def wait_again(self, message: Open) -> None:
        """The handler of the message has raised, so it waits again."""
        heapq.heappush(self._waiting, (message.seq, message.lease))

    @property
    def idle(self) -> bool:
        return not self.messages and self.run is None
