"""The desk: where outcomes are handed in, as they fall, without waiting.

A message that failed takes back with it what waits behind it in its lane, in the same parcel, or a later message of its key
would overtake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.flow.custody import Custody
from headrace.flow.lanes import Lanes
from headrace.model.errors import LeaseLost
from headrace.model.outcomes import RELEASE, Failure
from headrace.model.specs import Backoff
from headrace.runtime.guard import Guard
from headrace.runtime.message import Message
from headrace.runtime.own_acks import OwnAcks
from headrace.runtime.publisher import Publisher
from headrace.runtime.settings import Settings
from headrace.runtime.wiring import Clock, Keeping, Settling


class Desk:
    """Hands outcomes to custody, keeps lanes and custody in step, and tells the settler when there is news.

    Args:
        guard: the consumer's circuit breaker, if it has one.
    """

    def __init__(
        self, lanes: Lanes[Message], custody: Custody[Message], settings: Settings, publisher: Publisher, clock: Clock,
        guard: Guard | None = None,
    ) -> None:  # fmt: skip
        self.publisher = publisher
        self._settings = settings
        self._lanes = lanes
        self._custody = custody
        self._clock = clock
        self._guard = guard
        self.settler: Settling  # those that act on it; wired by the pipeline
        self.keeper: Keeping
        self.own: OwnAcks
        self.on_cleared: Callable[[], None] = lambda: None

    @property
    def backoff(self) -> Backoff:
        """The wait before the next attempt, as the settings have it now."""
        return self._settings.spec.backoff

    @property
    def max_deliver(self) -> int:
        """Attempts before a message is exhausted, as the settings have it now; -1 for no end."""
        return self._settings.spec.max_deliver

    def ack(self, message: Message) -> None:
        """It is done."""
        if self._custody.ack(message, self._clock()):
            self.settler.wake()

    async def settle_before(self, message: Message) -> None:
        """Wait until the messages of its lane that came before it are settled, so that its own ack may be committed."""
        if self._custody.unsettled(message.lane):
            await self.settler.flush()

    def fail(self, message: Message, failure: Failure) -> None:
        """It is not done; what waits behind it goes back untouched; and if that opens the breaker, all that waits."""
        guard = self._guard
        if guard is None:
            self._back(message, failure)
            self.release(self._lanes.close(message.lane))
            return
        was_closed = guard.closed
        self._back(message, guard.judge(message, failure))
        self.release(self._lanes.close(message.lane))
        if was_closed and not guard.closed:
            self.release_waiting()

    def give_up(self, message: Message) -> None:
        """It was not done, and that is not its fault: it goes back, attempts not counted, with what waits behind it."""
        self.fail(message, RELEASE)

    def release(self, messages: Iterable[Message]) -> None:
        """They were never started: they go back, attempts not counted."""
        for message in messages:
            self._back(message, RELEASE)

    def release_waiting(self) -> None:
        """The breaker is open: all that waits goes back untouched."""
        over = self._lanes.over
        self.release(self._lanes.clear())
        self._lanes.over = over  # there will be more, unless it drains
        self.on_cleared()

    def _back(self, message: Message, failure: Failure) -> None:
        if self._guard is not None:
            self._guard.back(message)
        self._lanes.give_back(message.lane)
        self._custody.fail(message, failure)
        self.settler.wake()

    async def settle_now(self, message: Message, failure: Failure | None) -> None:
        """What a handler does itself: record the outcome, and wait until the store has it."""
        if failure is None:
            self.ack(message)
        else:
            self.fail(message, failure)
        await self.settler.flush()

    async def extend_now(self, message: Message) -> None:
        """Extend this consumer's leases now. Raises `LeaseLost`."""
        await self.keeper.extend()
        if message.lease.lost:
            raise LeaseLost(
                f"The lease of message {message.seq} of {message.stream!r} was lost: somebody else may have it."
            )
