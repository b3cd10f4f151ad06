"""The executor of batches: what an actor does with lanes if its handler takes batches, or a key's run.

gather ──▶ decode ──▶ call ──▶ all acked, except those with another outcome
                        │
                      raised: all of them are retried, or halves are tried until the failing message is found
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from functools import cached_property
from typing import Any

import anyio
import anyio.lowlevel

from headrace.flow.gathering import Gathering
from headrace.model.errors import LeaseLost
from headrace.model.handling import Handling
from headrace.model.outcomes import RELEASE, Failure, Release, Snooze, deciding
from headrace.model.specs import Backoff
from headrace.runtime.execution.actors import Crew
from headrace.runtime.execution.execution import Execution
from headrace.runtime.execution.suspects import parts
from headrace.runtime.isolation import in_context, left_open, undisturbed
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message
from headrace.runtime.messages.publisher import Publisher
from headrace.runtime.settling.acknowledger import Acknowledger
from headrace.runtime.slot import NEVER, ActorSlot
from headrace.runtime.user_code import interrupts


class BatchExecutor:
    """Gathers batches from lanes, and runs them.

    If several actors wait for a batch to fill, only the first gets more messages, until it has
    enough. With `group_by_key` each actor waits for messages of its own key.
    """

    def __init__(self, execution: Execution, handling: Handling) -> None:
        self.unit = handling.unit
        self.batches = 0
        self._decode = execution.decode
        self._open = execution.opens
        self._call = execution.call
        self._handling = handling
        self._lanes = execution.lanes
        self._acknowledger = execution.acknowledger
        self._failure_handler = execution.failure_handler
        self._suspects = execution.suspects
        self._clock = execution.clock
        self._durations = execution.durations
        self._waiting: dict[Gathering[Message], anyio.Event] = {}  # batches that wait for more messages
        self._patient = True
        execution.lanes.on_more.connect(self._fill)

    async def run(self, message: Message, slot: ActorSlot, crew: Crew) -> None:
        """Fill a batch, beginning with this message, and run it. A timeout stops only one call of the handler."""
        batch = Gathering(
            self._lanes,
            message,
            self.unit,
            one_key=self._handling.group_by_key,
            max_size=self._handling.batch_bytes,
            size_of=_bytes_of,
        )
        try:
            if self._handling.batch_timeout:
                await undisturbed(self._wait, batch)
            await self._handle(batch.messages, slot)
        except BaseException:
            for message in batch.messages:
                if (
                    message.xid is not None
                ):  # It isn't known whether that was committed. If it was, giving it back changes nothing.
                    message.xid, message.settled = None, False
                self._failure_handler.settle(message, RELEASE)  # unless it has an outcome
            raise
        finally:
            self.batches += 1
            batch.return_lanes()
        # Yields the event loop to other tasks, in case the handler never waited.
        await undisturbed(anyio.lowlevel.checkpoint)

    # --- filling

    async def _wait(self, batch: Gathering[Message]) -> None:
        """Wait until the batch is full or its time is up."""
        if batch.over or not self._patient:
            return
        full = self._waiting[batch] = anyio.Event()
        try:
            with anyio.move_on_after(self._handling.batch_timeout):
                await full.wait()
        finally:
            self._waiting.pop(batch, None)

    def allow_waiting(self, patient: bool) -> None:
        """Set whether batches may wait to fill from now on. Otherwise they run with the messages that
        are there."""
        self._patient = patient
        if not patient:
            for full in self._waiting.values():
                full.set()

    def _fill(self) -> None:
        """Offer new messages to the batches that wait."""
        for batch, full in list(self._waiting.items()):
            batch.fill()
            if batch.over:
                del self._waiting[batch]
                full.set()

    # --- running

    async def _handle(self, messages: list[Message], slot: ActorSlot) -> None:
        """Run the handler with these messages, in as many calls as needed, until each has an outcome."""
        batch_acknowledger = BatchAcknowledger(self._acknowledger, messages)
        try:
            await self._work_off(parts(messages, self._acknowledger.max_deliver)[::-1], batch_acknowledger, slot)
        finally:
            batch_acknowledger.part()

    async def _work_off(
        self, todo: list[list[Message]], batch_acknowledger: BatchAcknowledger, slot: ActorSlot
    ) -> None:
        """Call the handler with each part in turn. The halves of a bisected part come next."""
        while todo:
            part = self._startable(todo.pop(), batch_acknowledger)
            if not part:
                continue
            batch = Batch(part[0].stream, part[0].consumer, tuple(part))
            error = await self._attempt(batch, slot)
            await self._confirm(batch, batch_acknowledger)
            if error is None:
                self._settle(batch, batch_acknowledger)
            elif (
                len(part) > 1
                and self._handling.on_batch_error == "bisect"
                and not isinstance(error, (LeaseLost, Release, Snooze))
            ):
                middle = len(part) // 2
                todo += [part[middle:], part[:middle]]
            else:
                self._fail(part, error, slot, batch_acknowledger)

    def _startable(self, part: list[Message], batch_acknowledger: BatchAcknowledger) -> list[Message]:
        """Return the messages that can be started, decoded again for each call, since a handler may
        have changed a payload."""
        found = []
        now = self._clock()
        for message in part:
            if message.settled:
                continue
            if message.lease.deadline <= now:
                self._failure_handler.settle(message, RELEASE)
                batch_acknowledger.release_behind(message)
                continue
            if message.cancelled:
                self._acknowledger.cancel(message)
                continue
            if message.alive_until <= now:
                self._acknowledger.expire(message)
                continue
            try:
                if self._open is not None:
                    self._open(message)
                message._payload = self._decode(message.raw)
            except BaseException as error:  # code of users in a type may raise anything
                if interrupts(error):
                    raise
                self._failure_handler.undecodable(message, error)
                batch_acknowledger.release_behind(message)
            else:
                found.append(message)
        return found

    async def _attempt(self, batch: Batch, slot: ActorSlot) -> BaseException | None:
        """Make one call of the handler, with its own cancel scope and timeout. Returns the error that
        it failed with."""
        slot.delivery, slot.overdue = batch, False
        error: BaseException | None = None
        try:
            with anyio.CancelScope() as slot.scope:
                error = await self._called(batch, slot)
        except RuntimeError as problem:
            if not left_open(problem):
                raise
            slot.spoilt = True
        return TimeoutError() if slot.overdue else error

    async def _called(self, batch: Batch, slot: ActorSlot) -> BaseException | None:
        """Call the handler. Returns the error that it failed with. Raises what ends the actor."""
        payloads = [message._payload for message in batch.messages]
        error: BaseException | None = None
        began = self._clock()
        try:
            async with self._admission(batch):
                began = self._clock()
                for message in batch.messages:
                    message.began = began
                if self._handling.timeout is not None:
                    slot.until = self._clock() + self._handling.timeout
                await in_context(copy_context(), self._call, payloads, batch)
            if slot.task.cancelling():
                await slot.recover()
        except BaseException as problem:
            if not isinstance(problem, Exception) and slot.is_ended_by(problem):
                raise
            error = deciding(problem)
        finally:
            slot.until = NEVER
            now = self._clock()
            self._durations.add(began, now)
            for message in batch.messages:
                message.lease.note_seconds(message.seq, began, now)
        if slot.task.cancelling() and not slot.stopped:
            await slot.recover()
        return error

    def _admission(self, batch: Batch) -> Any:
        if any(message.crashes for message in batch.messages):
            return self._suspects.starting(batch.messages)
        return nullcontext()

    async def _confirm(self, batch: Batch, batch_acknowledger: BatchAcknowledger) -> None:
        """Look up the outcome of messages that the handler has acked in its own transaction."""

        def failed(message: Message, error: BaseException) -> None:
            self._failure_handler.failed(message, error)
            batch_acknowledger.release_behind(message)

        for message in batch.messages:
            if message.xid is not None:
                await self._acknowledger.confirm(message, failed)

    def _settle(self, batch: Batch, batch_acknowledger: BatchAcknowledger) -> None:
        """Ack all messages after the handler has returned, except those that it failed and later
        messages of their keys."""
        ack, failures = self._acknowledger.ack, batch.failures
        logged: set[Hashable] = set()
        for message in batch.messages:
            if message.settled:
                continue
            failed = failures.get(message.seq) if failures else None
            if failed is None:
                message.settled = True
                ack(message)
            else:
                self._failed(message, failed, logged)
                batch_acknowledger.release_behind(message)

    def _fail(
        self, part: list[Message], error: BaseException, slot: ActorSlot, batch_acknowledger: BatchAcknowledger
    ) -> None:
        """Settle messages after the handler has failed with all of them. Each counts its attempt.

        Messages behind the last of a key are released without counting the attempt.
        """
        failed = [message for message in part if not message.settled]
        logged: set[Hashable] = set()
        for message in failed:
            if slot.overdue:
                self._failure_handler.stopped(message, slot)
            else:
                self._failed(message, error, logged)
        for message in reversed(failed):
            batch_acknowledger.release_behind(message)

    def _failed(self, message: Message, error: BaseException, logged: set[Hashable]) -> None:
        """Settle a message. Messages with this error and this attempt, the last or an earlier one, are one event."""
        cause = id(error), message.attempt
        self._failure_handler.failed(message, error, repeats=cause in logged)
        logged.add(cause)


def _bytes_of(message: Message) -> int:
    raw = message.raw
    return len(raw) if raw.isascii() else len(raw.encode())


class BatchAcknowledger:
    """The acknowledger of one batch. A failed message takes back the later messages of its key, at
    once and in the same parcel.

    The consumer's acknowledger does so with the messages that wait in the lane. Messages of the
    batch have left the lane.
    """

    def __init__(self, acknowledger: Acknowledger, messages: Sequence[Message]) -> None:
        self._acknowledger = acknowledger
        self._messages = messages
        self.publisher: Publisher = acknowledger.publisher
        self.ack_within = acknowledger.ack_within
        self.clock = acknowledger.clock
        for message in messages:
            message._acknowledger = self

    def part(self) -> None:
        """Detach the messages after all have outcomes. Python's garbage collector doesn't track
        messages, so they must not keep reference cycles."""
        for message in self._messages:
            message._acknowledger = self._acknowledger
        self._messages = ()
        self.__dict__.pop("_lanes", None)

    @property
    def backoff(self) -> Backoff:
        """The backoff before the next attempt."""
        return self._acknowledger.backoff

    async def settle_now(self, message: Message, failure: Failure | None) -> None:
        """Settle a message on behalf of the handler, and wait until the store has the outcome."""
        if failure is not None:
            self.release_behind(message)
        await self._acknowledger.settle_now(message, failure)

    async def extend_now(self, message: Message) -> None:
        """Extend the leases. Raises `LeaseLost`."""
        await self._acknowledger.extend_now(message)

    def release_behind(self, message: Message) -> None:
        """Release the later messages of its lane, because the message has failed. Their attempts
        don't count."""
        lane = self._lanes[message.lane]
        while lane[-1] is not message:
            behind = lane.pop()
            if not behind.settled:
                behind.settled = True
                self._acknowledger.release((behind,))

    @cached_property
    def _lanes(self) -> dict[Hashable, list[Message]]:
        lanes: dict[Hashable, list[Message]] = {}
        for message in self._messages:
            lanes.setdefault(message.lane, []).append(message)
        return lanes
