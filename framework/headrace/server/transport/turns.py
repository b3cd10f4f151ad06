"""Turns: access tokens share a server's event loop and connections fairly.

One token may have hundreds of requests under way. Each of them takes the event loop for a moment, and a request of
another token would wait behind all of them at each of its steps. So while several tokens are active, each has a limited
number of requests in progress, and its others wait in a separate queue.

The limit follows from the delay of the loop, as in TCP's congestion control: it rises by one per interval, and falls by
a third while a timer fires late or calls wait for a connection of the database. A busy loop is always a few
milliseconds late, so the limit takes nothing from the throughput. A token that has less in progress than the limit
doesn't notice it.

The algorithm is additive increase and multiplicative decrease (Chiu and Jain, 1989), which converges to equal shares.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

INTERVAL = 0.01
"""Seconds between two measurements of the loop's delay."""

TARGET = 0.004
"""The delay of the loop in seconds above which fewer requests of a token may be in progress."""

DECREASE = 0.7
"""The limit's factor for an interval with a larger delay."""

INCREASE = 0.2
"""What is added to the limit in an interval without."""

REMEMBERED = 1.0
"""Seconds for which a token counts as active after its last request began."""


class Turns:
    """Limits the requests in progress of each token while several tokens are active.

    Nothing is measured while only one token is active.

    Args:
        most: the largest limit, which is also the initial one.
        overloaded: whether something else than the loop is overloaded, such as the pool of connections.

    Attributes:
        limit: the most requests in progress of a token, as of now. Its integral part counts.
    """

    def __init__(self, most: int, overloaded: Callable[[], bool] = lambda: False) -> None:
        self.most = most
        self.limit = float(most)
        self._overloaded = overloaded
        self._in_progress: dict[str, int] = {}
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._active: dict[str, float] = {}  # by token, when its last request began
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, token: str) -> None:
        """Wait until a request of a token may be in progress. Call `give_back` when it isn't any more."""
        loop = asyncio.get_running_loop()
        self._active[token] = loop.time()
        if self._timer is None and len(self._active) > 1:
            self._schedule(loop)
        count = self._in_progress.get(token, 0)
        if count < int(self.limit) and token not in self._queues:
            self._in_progress[token] = count + 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._queues.setdefault(token, deque()).append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # the turn was given just as the wait ended
                self.give_back(token)
            else:
                self._leave(token, turn)
            raise

    def resume(self, token: str) -> None:
        """Count a request as in progress without waiting, after a pause that began with `give_back`."""
        self._in_progress[token] = self._in_progress.get(token, 0) + 1

    def give_back(self, token: str) -> None:
        """End a turn."""
        count = self._in_progress[token] - 1
        if count:
            self._in_progress[token] = count
        else:
            del self._in_progress[token]
        if token in self._queues:
            self._serve(token)

    def _leave(self, token: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues.get(token)
        if queue is not None and turn in queue:  # a turn that was given in the same step has passed over it
            queue.remove(turn)
            if not queue:
                del self._queues[token]

    def _serve(self, token: str) -> None:
        """Give turns to the first requests in a token's queue."""
        queue = self._queues[token]
        while queue and self._in_progress.get(token, 0) < int(self.limit):
            turn = queue.popleft()
            if not turn.done():
                self._in_progress[token] = self._in_progress.get(token, 0) + 1
                turn.set_result(None)
        if not queue:
            del self._queues[token]

    # --- the limit

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + INTERVAL
        self._timer = loop.call_at(self._due, self._measure, loop)

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._active = {
            token: at for token, at in self._active.items() if now - at < REMEMBERED or token in self._in_progress
        }
        self.adapt(now - self._due)
        if len(self._active) > 1 or self._queues:
            self._schedule(loop)
        else:
            self._timer = None

    def adapt(self, delay: float) -> None:
        """Adapt the limit to a delay of the loop in seconds."""
        if len(self._active) < 2:
            self.limit = float(self.most)
        elif delay > TARGET or self._overloaded():
            in_use = max(self._in_progress.values(), default=1)
            self.limit = max(min(self.limit, in_use) * DECREASE, 1.0)
        else:
            self.limit = min(self.limit + INCREASE, float(self.most))
        for token in list(self._queues):
            self._serve(token)
