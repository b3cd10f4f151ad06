"""Ends the waits of requests that receive messages, and notices the clients that disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headrace.server.data_plane.receive_request import Receiver
from headrace.server.http import WATCH


class ReceiverWatch:
    """Looks after the requests of a queue. Most are answered within `WATCH` seconds, so those share a timer.

    Args:
        queue: returns the requests that are not answered.
        expire: ends the wait of a request.
        clock: monotonic time in seconds.
    """

    def __init__(
        self, queue: Callable[[], Sequence[Receiver]], expire: Callable[[Receiver], None], clock: Callable[[], float]
    ) -> None:
        self._queue = queue
        self._expire = expire
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, receiver: Receiver, wait: float) -> None:
        """Look after a request that has joined the queue, and waits for some seconds."""
        if 0 < wait < WATCH:
            receiver.watched = True
            receiver.timer = asyncio.get_running_loop().call_later(wait, self._look_after, receiver)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WATCH, self._look_after_all, receiver.since)

    def _look_after_all(self, since: float) -> None:
        """Begin to look after the requests that wait since before a time."""
        self._timer = None
        new = False
        for receiver in list(self._queue()):
            if not receiver.watched and receiver.since <= since:
                receiver.watched = True
                self._look_after(receiver)
            new = new or not receiver.watched
        if new:
            self._timer = asyncio.get_running_loop().call_later(WATCH, self._look_after_all, self._clock())

    def _look_after(self, receiver: Receiver) -> None:
        """End a request's wait if it is over. Otherwise begin to watch whether its client is connected.

        A request without a wait is watched, too: it may be in line for a place to examine messages.
        """
        if receiver.waits:
            left = receiver.until - self._clock()
            if left <= 0:
                self._expire(receiver)
                return
            receiver.timer = asyncio.get_running_loop().call_later(left, self._expire, receiver)
        if receiver.gone is not None:
            receiver.watching = asyncio.ensure_future(receiver.watch(receiver.gone))
