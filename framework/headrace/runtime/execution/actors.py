"""The actors: each takes a ready lane, works on it, and takes the next. No task is created per message."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import anyio
import anyio.abc

from headrace.flow.lanes import Lanes
from headrace.flow.priority import Rank
from headrace.model.handling import Handling
from headrace.runtime.isolation import joined, left_open, line_in_work, undisturbed
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message
from headrace.runtime.slot import NEVER, ActorSlot, current_slot


class Crew(Protocol):
    """The view that a working actor has of the others.

    Attributes:
        onward: whether it may take another lane when it is done with one. Otherwise it must end.
    """

    onward: bool


class Work(Protocol):
    """The work of an actor on messages. Implemented by `single_executor`, `plain_executor` and `batch_executor`."""

    @property
    def unit(self) -> int:
        """The largest number of messages that it takes at a time."""

    @property
    def batches(self) -> int | None:
        """How many batches it has run. None if it takes single messages."""

    async def run(self, message: Message, slot: ActorSlot, crew: Crew) -> Message | None:
        """Work on the lane that a message was taken from, and then on others. Returns None when that is done. After a
        timeout it returns the message that was stopped. The next message needs a fresh scope."""


class _Place:
    """The place of one actor, which is taken until it leaves."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = True


class Actors:
    """A pool of actors for one consumer.

    Args:
        handling: says whether handlers have a timeout. Its lowest concurrency is the number of actors allowed while
            consumers of higher priority go first.
        on_spoilt: called when another task takes the place of one in which your code has left a scope open.
        begin: called first in each task of an actor.

    Attributes:
        rank: the consumer's priority rank, if priorities differ. It is notified whether lanes wait
            for an actor.
        wanted: the number of actors that there should be.
        target: the number that is allowed now, since other consumers may go first.
        count: the current number of actors. A surplus actor ends when it is done with its lane.
        onward: whether there is no surplus.
        starved: how often an actor found no lane.
    """

    def __init__(
        self,
        work: Work,
        lanes: Lanes[Message],
        handling: Handling,
        on_spoilt: Callable[[], None],
        begin: Callable[[ActorSlot], None] | None = None,
    ) -> None:
        self._work = work
        self._on_spoilt = on_spoilt
        self._lanes = lanes
        self._timed = handling.timeout is not None
        self._begin = begin
        self._idle: deque[asyncio.Future[None]] = deque()
        self._slots: set[ActorSlot] = set()
        self._group: anyio.abc.TaskGroup | None = None
        self._over = anyio.Event()
        self.rank: Rank | None = None
        self._least, self._most = handling.concurrency
        self.wanted = 0
        self.target = 0
        self.count = 0
        self.onward = True
        self._waiting = 0
        self.starved = 0
        lanes.on_ready.connect(self.wake)
        lanes.on_drained.connect(self._relax)

    @property
    def capacity(self) -> int:
        """How many messages the actors can work on at the same time."""
        return self.target * self._work.unit

    @property
    def spare(self) -> int:
        """How many messages could be in work besides those that are: those of idle actors, or else of one more actor, if the
        concurrency allows it."""
        return max(self.target - self.busy, int(self.busy < self._most)) * self._work.unit

    @property
    def batches(self) -> int | None:
        """How many batches the actors have run. None if they take single messages."""
        return self._work.batches

    @property
    def busy(self) -> int:
        """The number of actors that work on a lane."""
        return self.count - self._waiting

    @property
    def call_this(self) -> bool:
        """Whether the current task is that of one of the actors, and so runs its handler."""
        slot = current_slot.get()
        return slot in self._slots and slot.task is asyncio.current_task()

    def delivery_of(self, task: asyncio.Task[Any]) -> Message | Batch | None:
        """Return what the handler that runs in a task works on. None if that is the task of no actor, or between two
        messages."""
        return next((slot.delivery for slot in self._slots.copy() if slot.task is task), None)

    def in_work(self) -> Iterator[tuple[Message | Batch, str | None]]:
        """Yield what each handler that runs works on, and the line of your code at which it is."""
        frames = sys._current_frames()
        for slot in self._slots.copy():
            if slot.delivery is not None and not slot.delivery.messages[0].settled:
                is_blocking = slot.task is asyncio.current_task(slot.task.get_loop())
                thread = threading.main_thread().ident if is_blocking else slot.thread
                yield slot.delivery, line_in_work(slot.task, frames.get(thread or 0))

    @property
    def held(self) -> bool:
        """Whether consumers of higher priority go first."""
        return self.rank is not None and self.rank.held

    async def run(self, first: int) -> None:
        """Run actors, at first `first` of them, until `finish` is called and their work has ended."""
        async with anyio.create_task_group() as self._group:
            self.resize(first)
            await self._over.wait()

    def resize(self, target: int) -> None:
        """Set the wanted number of actors. It has no effect after `finish`."""
        self.wanted = target
        self.adjust()

    def adjust(self) -> None:
        """Adjust the number of actors to what is allowed now."""
        if self._group is None or self._over.is_set():
            return
        self.target = min(self.wanted, self._least) if self.held else self.wanted
        for _ in range(self.target - self.count):
            self.count += 1
            self._group.start_soon(self._actor, _Place())
        self.onward = self.count <= self.target
        for _ in range(self.count - self.target):
            self._wake_one()

    def wake(self) -> None:
        """Wake actors, after lanes have become ready or no longer are."""
        ready = self._lanes.ready
        if self.rank is not None:
            self.rank.press(ready > len(self._idle))
        self._wake_for(ready)

    def _wake_for(self, ready: int) -> None:
        """Wake two actors at most. Each of them wakes two more if lanes are left when it runs.

        Handlers that never wait need few actors, and to wake one in vain costs more than a message.
        """
        for _ in range(min(ready, 2)):
            self._wake_one()

    def finish(self) -> None:
        """Stop taking lanes. Every actor ends after its current lane."""
        self.resize(0)
        self._over.set()

    def cancel(self) -> None:
        """Stop every handler now. The messages in work are released."""
        if self._group is not None:
            self._group.cancel_scope.cancel()
        self._over.set()

    def overdue(self, now: float) -> Iterator[None]:
        """Stop handlers that have exceeded their timeout. Yields once for each."""
        for slot in list(self._slots):
            if slot.until <= now:
                slot.until = NEVER
                slot.overdue = True
                slot.scope.cancel()
                yield

    def stop_cancelled(self) -> None:
        """Stop handlers all of whose messages without an outcome are cancelled."""
        for slot in list(self._slots):
            if slot.delivery is None or slot.overdue or slot.stopped:
                continue
            unsettled = [message for message in slot.delivery.messages if not message.settled]
            if unsettled and all(message.cancelled for message in unsettled):
                slot.stop_message(scoped=self._timed or self._work.batches is not None)

    def _wake_one(self) -> None:
        while self._idle:
            woken = self._idle.popleft()
            if not woken.done():  # by being cancelled
                woken.set_result(None)
                return

    async def _actor(self, place: _Place) -> None:
        """Be an actor until it is surplus. It works in a separate task, and in another one when that is spoilt."""
        try:
            ended = False
            while not ended:
                whole = anyio.CancelScope()
                ended = await joined(asyncio.create_task(self._work_in(whole, place), name="headrace actor"), whole)
        finally:
            self._leave(place)

    def _leave(self, place: _Place) -> None:
        """Count one actor less, whose place it was. A surplus actor leaves immediately, while no other runs. Otherwise
        all that are done in the meantime would find themselves surplus, too."""
        if place.taken:
            place.taken = False
            self.count -= 1
            self.onward = self.count <= self.target

    async def _work_in(self, whole: anyio.CancelScope, place: _Place) -> bool:
        """Work until the actor is surplus. Returns False if the task is spoilt before."""
        slot = ActorSlot(whole)
        current_slot.set(slot)
        self._slots.add(slot)
        if self._begin is not None:
            self._begin(slot)
        work = self._work_timed if self._timed else self._work.run
        following: Message | None = None
        try:
            with whole:
                while not slot.spoilt and (following is not None or self.count <= self.target):
                    message = self._lanes.take() if following is None else following
                    if message is None:
                        await undisturbed(self._wait_for_lane)
                        continue
                    done = await work(message, slot, self)
                    if done is not None and slot.spoilt:
                        break
                    slot.delivery = None
                    following = None if done is None else self._lanes.next(done, self.onward)
        except asyncio.CancelledError:
            slot.spoilt = True
        except RuntimeError as error:
            if not left_open(error):
                raise
            slot.spoilt = True
        finally:
            self._slots.discard(slot)
        if not slot.replaced:
            if whole.cancel_called or not slot.spoilt:
                self._leave(place)
                return True
            self._on_spoilt()
        if isinstance(slot.delivery, Message):  # its lane has others, which another task may work on
            self._lanes.return_lanes((slot.delivery.lane,))
        return False

    def _relax(self) -> None:
        """Let consumers of lower priority go, since no lane waits for an actor."""
        if self.rank is not None:
            self.rank.press(False)

    async def _wait_for_lane(self) -> None:
        self.starved += 1
        woken = asyncio.get_running_loop().create_future()
        self._idle.append(woken)
        self._waiting += 1
        try:
            await woken
        finally:
            self._waiting -= 1
            self._wake_for(self._lanes.ready - 1)

    async def _work_timed(self, message: Message, slot: ActorSlot, crew: Crew) -> Message | None:
        """Work on messages with a timeout. The scope belongs to the actor slot, since one per message
        would cost more than all the rest.

        A timeout cancels the scope. Then this returns the message that was stopped.
        """
        slot.clear()
        stopped, ended = None, False
        try:
            with slot.scope:
                stopped = await self._work.run(message, slot, crew)
                ended = True
        except RuntimeError as error:
            if not left_open(error):
                raise
            slot.spoilt = True
        finally:
            slot.until = NEVER
        return stopped if ended or not isinstance(slot.delivery, Message) else slot.delivery

    def statistics(self) -> dict[str, int]:
        """Return the current number of actors, the target, and the number of busy actors."""
        return {"actors": self.count, "target": self.target, "busy": self.busy}
