"""The actors: each takes a ready lane, runs its messages in turn, and takes the next. No task is made per message."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from headrace.flow.lanes import Lane, Lanes
from headrace.model.outcomes import RELEASE, Failure, Reject, Retry
from headrace.runtime.desk import Desk
from headrace.runtime.failure_log import FailureLog
from headrace.runtime.failures import failure_of, invalid, timed_out
from headrace.runtime.handler import Handler
from headrace.runtime.message import Message
from headrace.runtime.wiring import Clock

STRETCH = 64
"""Messages after which an actor lets others have the event loop, if its handler never waited."""

NEVER = float("inf")


class Bench:
    """An actor's place at work: the message it is on, and until when it may be."""

    __slots__ = ("overdue", "scope", "until")

    def __init__(self) -> None:
        self.until = NEVER
        self.overdue = False
        self.scope = anyio.CancelScope()


class Actors:
    """A pool of actors for one consumer.

    Attributes:
        target: how many there should be.
        count: how many there are. One that is too many leaves when it has nothing to do.
        busy: how many work on a lane.
    """

    def __init__(
        self, handler: Handler, timeout: float | None, lanes: Lanes[Message], desk: Desk, clock: Clock
    ) -> None:
        self._handler = handler
        self._timeout = timeout
        self._lanes = lanes
        self._desk = desk
        self._clock = clock
        self._log = FailureLog(clock)
        self._idle: deque[anyio.Event] = deque()
        self._benches: set[Bench] = set()
        self._group: anyio.abc.TaskGroup | None = None
        self._over = anyio.Event()
        self.target = 0
        self.count = 0
        self.busy = 0

    async def run(self, first: int) -> None:
        """Run actors, `first` many to begin with, until `finish` and the end of what they do."""
        async with anyio.create_task_group() as self._group:
            self.resize(first)
            await self._over.wait()

    def resize(self, target: int) -> None:
        """Have `target` actors from now on; after `finish` it is too late for that."""
        assert self._group is not None
        if self._over.is_set():
            return
        self.target = target
        for _ in range(target - self.count):
            self.count += 1
            self._group.start_soon(self._actor)
        for _ in range(self.count - target):
            self._wake_one()

    def wake(self) -> None:
        """Lanes have become ready: wake as many actors as can have one."""
        for _ in range(min(self._lanes.ready, len(self._idle))):
            self._wake_one()

    def finish(self) -> None:
        """No more lanes: every actor ends with what it is doing."""
        self.resize(0)
        self._over.set()

    def cancel(self) -> None:
        """Stop every handler now. What they were doing is given back."""
        if self._group is not None:
            self._group.cancel_scope.cancel()
        self._over.set()

    def overdue(self, now: float) -> Iterator[None]:
        """Stop handlers that have passed their timeout. Yields once for each."""
        for bench in list(self._benches):
            if bench.until <= now:
                bench.until = NEVER
                bench.overdue = True
                bench.scope.cancel()
                yield

    def _wake_one(self) -> None:
        if self._idle:
            self._idle.popleft().set()

    async def _actor(self) -> None:
        work = self._work if self._timeout is None else self._work_timed
        try:
            while self.count <= self.target:
                lane = self._lanes.take()
                if lane is not None:
                    self.busy += 1
                    try:
                        await work(lane)
                    finally:
                        self.busy -= 1
                else:
                    event = anyio.Event()
                    self._idle.append(event)
                    await event.wait()
        finally:
            self.count -= 1

    async def _work(self, lane: Lane[Message], bench: Bench | None = None) -> None:
        """Run a lane until it is dry, or until the bench is spent. This is what happens once per message."""
        next_message, clock = self._lanes.next, self._clock
        decode, call, ack = self._handler.decode, self._handler.call, self._desk.ack
        stretch = 0
        while (message := next_message(lane)) is not None:
            if message.lease.deadline <= clock():
                self._desk.give_up(message)
                continue
            try:
                payload = message._payload = decode(message.raw)
            except Exception as error:
                self._undecodable(message, error)
                continue
            if bench is not None:
                bench.until = clock() + (self._timeout or NEVER)
            try:
                result = await call(payload, message)
            except Exception as error:
                self._failed(message, error)
            except BaseException as error:
                if not _from_within(error):
                    self._stopped(message, bench)
                    raise
                self._failed(message, error)
            else:
                if bench is not None and bench.overdue:
                    self._stopped(message, bench)
                elif result is not None and isinstance(result, (Retry, Reject)):
                    self._failed(message, result)
                elif not message.settled:
                    message.settled = True
                    ack(message)
            if bench is not None:
                if bench.overdue:
                    return
                bench.until = NEVER
            stretch += 1
            if stretch >= STRETCH:
                stretch = 0
                await anyio.lowlevel.checkpoint()

    async def _work_timed(self, lane: Lane[Message]) -> None:
        """Run a lane with a timeout. The scope belongs to the actor: one per message would cost more than all the rest.

        A timeout spends it, and then the lane goes on at another bench.
        """
        dry = False
        while not dry:
            bench = Bench()
            self._benches.add(bench)
            try:
                with bench.scope:
                    await self._work(lane, bench)
                dry = not bench.overdue
            finally:
                self._benches.discard(bench)

    def _undecodable(self, message: Message, error: Exception) -> None:
        if isinstance(error, (msgspec.MsgspecError, UnicodeError, RecursionError)):
            self._settle(message, invalid(error))
        else:  # from code of the user's that a type runs when it is made, such as __post_init__
            self._failed(message, error)

    def _failed(self, message: Message, error: BaseException) -> None:
        self._settle(message, failure_of(error, message.attempt, self._desk.backoff))

    def _stopped(self, message: Message, bench: Bench | None) -> None:
        """The handler was cancelled: by a timeout, or by the end of the drain, and then that is not the message's fault."""
        if bench is not None and bench.overdue:
            assert self._timeout is not None
            backoff, is_async = self._desk.backoff, self._handler.is_async
            self._settle(message, timed_out(self._timeout, message.attempt, backoff, is_async=is_async))
        else:
            self._settle(message, RELEASE)

    def _settle(self, message: Message, failure: Failure) -> None:
        if not message.settled:
            message.settled = True
            self._desk.fail(message, failure)
            if failure.kind != "release":
                self._log.tell(message, failure)

    def statistics(self) -> dict[str, int]:
        """Actors there are, should be, and that are busy."""
        return {"actors": self.count, "target": self.target, "busy": self.busy}


def _from_within(error: BaseException) -> bool:
    """Whether it is a cancellation that nobody asked of us: the handler waited for something else that was cancelled."""
    return isinstance(error, anyio.get_cancelled_exc_class()) and anyio.current_effective_deadline() > -NEVER
