"""A request that receives messages, and its share of a lease call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import msgspec

from headrace.server.data_plane.message_cache import CachedMessage


class Share(msgspec.Struct, frozen=True, gc=False):
    """The messages that a request received, under its own lease. The lists are parallel.

    `stale` has the ids that the request settled without effect, because their leases were lost. None if it settled nothing.
    """

    lease: int | None
    ack_ids: Sequence[str] = ()
    seqs: Sequence[int] = ()
    attempts: Sequence[int] = ()
    messages: Sequence[CachedMessage] = ()
    stale: Sequence[str] | None = None

    @property
    def keys(self) -> list[str]:
        return [one.key for one in self.messages]

    @property
    def data(self) -> list[str]:
        """JSON text of each message."""
        return [one.data for one in self.messages]

    @property
    def headers(self) -> list[str | None]:
        """JSON text of each message, or None."""
        return [one.headers for one in self.messages]

    @property
    def created_at(self) -> list[datetime]:
        return [one.created_at for one in self.messages]


NOTHING = Share(None)


class ClientGone(Exception):
    """The client has disconnected while it waited."""


Gone = Callable[[], Awaitable[None]]
"""Waits until the client has disconnected."""


class Receiver:
    """A request that receives messages. `until` is the end of its wait. `called` is whether a
    running lease call includes it, and `watched` whether its wait and its client are looked after."""

    __slots__ = ("answer", "called", "gone", "since", "timer", "until", "want", "watched", "watching")

    def __init__(self, want: int, since: float, until: float, gone: Gone | None) -> None:
        self.want = want
        self.since = since
        self.until = until
        self.gone = gone
        self.called = False
        self.watched = False
        self.answer: asyncio.Future[Share] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None
        self.watching: asyncio.Task[None] | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits for messages if there are none."""
        return self.until > self.since

    async def watch(self, gone: Gone) -> None:
        """Wait until the client disconnects, then fail the request."""
        await gone()
        if not self.answer.done():
            self.answer.set_exception(ClientGone())

    def end(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.watching is not None:
            self.watching.cancel()
            self.watching = None  # the traceback of its cancellation has this request, and so the messages
