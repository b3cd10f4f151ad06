"""The intake: makes messages of a leased batch, and puts them into the lanes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from datetime import datetime
from itertools import repeat

from headrace.flow.lease import Lease
from headrace.model.messages import payloads
from headrace.model.records import Batch
from headrace.runtime.execution.actors import Actors
from headrace.runtime.instruments import Sample
from headrace.runtime.messages.message import Message
from headrace.runtime.pipeline.handover import Handover
from headrace.runtime.settling.acknowledger import Acknowledger
from headrace.runtime.settling.breaker import PipelineBreaker
from headrace.runtime.stored_consumer import LeasedMessages, StoredConsumer


class Intake:
    """Takes leased messages in.

    Args:
        actors: woken for the messages.
        acknowledger: takes the messages back that may not start.
        breaker: the consumer's circuit breaker, if it has one.
        handover: releases messages to processes that have none. None for a consumer of single messages.
        sample: chooses the messages that telemetry observes. None if it observes all or none.
    """

    def __init__(
        self,
        consumer: StoredConsumer,
        leased: LeasedMessages,
        actors: Actors,
        acknowledger: Acknowledger,
        breaker: PipelineBreaker | None,
        handover: Handover | None = None,
        sample: Sample | None = None,
    ) -> None:
        self.handover = handover
        self._settings = consumer.settings
        self._lanes = leased.lanes
        self._actors = actors
        self._acknowledger = acknowledger
        self._breaker = breaker
        self._sample = sample

    @property
    def capacity(self) -> int:
        """How many messages the actors can run at the same time."""
        return self._actors.capacity

    @property
    def spare(self) -> int:
        """How many messages could be in work besides those that are."""
        return self._actors.spare

    def trim(self, keep: int) -> None:
        """Release the last messages of keys at work, while no lane is ready, so that at most `keep` messages wait."""
        if self._lanes.waiting > keep:
            self._acknowledger.release(self._lanes.trim(keep))

    async def dispatch(self, batch: Batch, lease: Lease, lanes: Sequence[Hashable], called_at: float) -> None:
        """Put the messages of a batch into their lanes. Those that may not start are released. `called_at`: when the
        lease call began, on the clock of the process."""
        messages = self._messages(batch, lease, lanes)
        if self._settings.spec.history is not None:
            lease.seconds = {}
        if self._sample is not None:
            for position, call in self._sample.choose(batch.headers):
                messages[position].call = call
                messages[position].plain = False
        if any(batch.headers):
            _limit_lives(messages, batch.begun_at, called_at)
        if self._breaker is None or self._breaker.admits(messages):
            refused = self._lanes.add(messages)
            self._actors.wake()
        else:
            refused = messages
            self._lanes.add(())
        if refused:
            # Another lease call before the store has these back could bring later messages of their
            # keys.
            self._acknowledger.release(refused)
            await self._acknowledger.flush()

    def _messages(self, batch: Batch, lease: Lease, lanes: Sequence[Hashable]) -> list[Message]:
        stream, consumer, acknowledger = self._settings.spec.stream, self._settings.spec.name, self._acknowledger
        attempts, times = batch.attempts or repeat(1), batch.created_at.microseconds
        leading, stored = (repeat(stream), repeat(consumer)), (batch.keys, batch.seqs, attempts, times)
        content, tracked = (batch.data, batch.headers), (repeat(lease), lanes, repeat(acknowledger))
        messages = list(map(Message, *leading, *stored, *content, *tracked))
        if batch.crashes is not None:
            for message, crashes in zip(messages, batch.crashes, strict=True):
                message.crashes = crashes
                message.plain = message.plain and not crashes
        return messages


def _limit_lives(messages: list[Message], begun_at: datetime | None, called_at: float) -> None:
    """Note when messages expire, on the clock of the process.

    The server's time of the beginning of the lease call says how long they still live, so this machine's clock need not
    agree with it. That counts from before the call, so that no handler starts too late. The time that the server waits
    in the call takes nothing from their lives.
    """
    for message in messages:
        alive = payloads.time_to_live(message.raw_headers)
        if alive is not None and begun_at is not None:
            message.plain = False
            message.alive_until = called_at + alive - (begun_at - message.created_at).total_seconds()
