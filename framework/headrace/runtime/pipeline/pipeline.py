"""The pipeline of one consumer in one process: its parts, wired in the order in which messages pass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

import anyio
import anyio.abc
import msgspec

from headrace.flow.durable import DurableLanes
from headrace.flow.governor import Governor
from headrace.flow.in_flight import InFlightTracker
from headrace.flow.lanes import Lanes
from headrace.flow.signal import Signal
from headrace.flow.wide import WideLanes
from headrace.model.errors import StoreUnavailable, UnknownConsumer
from headrace.model.handling import Handling
from headrace.model.specs import ConsumerSpec
from headrace.model.watching import history_log
from headrace.model.watching.reasons import Reason
from headrace.runtime.execution.actors import Actors, Work
from headrace.runtime.execution.batch_executor import BatchExecutor
from headrace.runtime.execution.durations import Durations
from headrace.runtime.execution.execution import Execution
from headrace.runtime.execution.failure_handler import FailureHandler
from headrace.runtime.execution.plain_executor import PlainExecutor
from headrace.runtime.execution.single_executor import SingleExecutor
from headrace.runtime.execution.suspects import Suspects
from headrace.runtime.execution.timeouts import Timeouts
from headrace.runtime.formats.format import StreamFormat
from headrace.runtime.handlers.handler import Handler
from headrace.runtime.handlers.runners import Runner
from headrace.runtime.handlers.transactional import Transactional
from headrace.runtime.messages.message import Message
from headrace.runtime.pipeline.drain import Drain
from headrace.runtime.pipeline.fetcher import Fetcher
from headrace.runtime.pipeline.handover import Handover
from headrace.runtime.pipeline.intake import Intake
from headrace.runtime.pipeline.layers import with_layers
from headrace.runtime.pipeline.scaler import Scaler
from headrace.runtime.pipeline.shared import Shared
from headrace.runtime.settling.acknowledger import Acknowledger
from headrace.runtime.settling.breaker import PipelineBreaker
from headrace.runtime.settling.dead_letters import DeadLetters
from headrace.runtime.settling.keeper import Keeper
from headrace.runtime.settling.settler import Settler
from headrace.runtime.settling.verifier import Verifier
from headrace.runtime.stored_consumer import LeasedMessages, Settings, StoredConsumer
from headrace.store.database.retry import DatabaseRetry, run_with_retry

LIMITED = 5.0
"""Seconds for which a consumer counts as held by its rate limit after a lease call found no token."""

CHECK_OUT = 1.0
"""Seconds that the check-out may take at the end. Without it, a crash of the database makes others wait for this
process."""


class Pipeline:
    """Runs one consumer.

    Its parts form a tree: each gets the parts that it uses when it is made. Parts that must react to
    others connect themselves to their signals.

        lanes, in_flight ─▶ settler, keeper ─▶ acknowledger ─▶ executor ─▶ actors ─▶ intake ─▶ fetcher

    Args:
        consumer: the consumer's id.
        spec: its settings in the store.
        handler: the function to run.
        handling: how to run it.
        shared: what the consumers of this process share.
        stored_as: how the stream's payloads are stored. None for JSON.

    Attributes:
        on_gone: the consumer turned out to be deleted. Then this pipeline ends automatically. It
            leases nothing more, and lets handlers finish, although their acks are lost.
    """

    def __init__(
        self,
        consumer: int,
        spec: ConsumerSpec,
        handler: Handler,
        handling: Handling,
        shared: Shared,
        stored_as: StreamFormat | None = None,
    ) -> None:
        clock = shared.time.clock
        self.consumer = consumer
        self.spec = spec
        self.settings = Settings(spec)
        # One process is one owner, which may hold several messages of a key
        self._stored = stored = StoredConsumer(shared.database, consumer, uuid4(), self.settings, shared.time)
        self._clock = clock
        self._handling = handling
        self._shutdown_timeout = shared.shutdown_timeout
        self._history_watch, self._loop_watch = shared.history_watch, shared.loop_watch

        # The messages in flight, and where they wait
        self.lanes = lanes = _lanes(handling)
        self.in_flight = in_flight = _tracker(spec, handling, shared)
        leased = LeasedMessages(lanes, in_flight)
        self._verifier = verifier = Verifier(stored, in_flight)

        # From outcomes to the store
        self.breaker = (
            None if handling.breaker is None else PipelineBreaker(spec.name, handling.breaker, in_flight, clock)
        )
        hooks = (*shared.dead_letter_hooks, *handling.dead_letter_hooks)
        self.dead_letters = DeadLetters(stored, hooks, shared.instruments)
        self.settler = Settler(stored, leased, verifier, self.dead_letters, shared.instruments)
        self.keeper = Keeper(stored, in_flight, verifier)
        acknowledger = Acknowledger(stored, leased, self.settler, self.keeper, shared.publisher, self.breaker)

        # From lanes to outcomes
        self._runner = Runner(handler, handling, clock)
        if history_log.LOG is not None:
            self._runner.call = history_log.LOG.handling(self._runner.call, consumer)
        transactional = Transactional(stored, handling, acknowledger.ack, shared.publisher, lanes)
        call, sample = with_layers(spec, handler, self._runner, handling, shared, transactional)
        failure_handler = FailureHandler(
            acknowledger, clock, handling.timeout, stoppable=handling.runner != "thread", opens=stored_as is not None
        )
        suspects = Suspects(shared.database, consumer, acknowledger)
        decode, opens = (
            (handler.decode, None) if stored_as is None else (stored_as.guarded(handler.decode), stored_as.open)
        )
        self._durations = Durations()
        execution = Execution(
            decode, opens, call, lanes, acknowledger, failure_handler, suspects, clock, self._durations
        )
        self._batches: BatchExecutor | None = None
        work: Work
        if handling.batch is None:
            bare = call is handler.apply and handler.takes_payload_only and handling.timeout is None and opens is None
            function, timeout = handler.function, handling.timeout
            work = PlainExecutor(function, execution) if bare else SingleExecutor(execution, timeout)
        else:
            work = self._batches = BatchExecutor(execution, handling)
        self.actors = Actors(
            work,
            lanes,
            handling,
            begin=None if sample is None else lambda slot: sample.enter_actor(slot.in_work),
            on_spoilt=lambda: failure_handler.log.left_open(spec.name),
        )
        self._timeouts = (
            None if handling.timeout is None else Timeouts(spec.name, handling.timeout, self.actors, in_flight, clock)
        )
        self._priorities = shared.priorities
        self._rank = shared.priorities.join(handling.priority, self.actors.adjust)
        self.governor = Governor(*handling.concurrency, now=clock())
        most = shared.database.holds if handling.transactional else None
        self._scaler = Scaler(shared, spec.name, self.governor, self.actors, leased, most)

        # From the store to lanes
        handover = None if self._batches is None else Handover(stored, leased, acknowledger)
        intake = Intake(stored, leased, self.actors, acknowledger, self.breaker, handover, sample)
        self.fetcher = Fetcher(shared, stored, leased, intake, self.settler, verifier, self.breaker)

        self.on_gone = Signal()
        if shared.instruments is not None:
            shared.instruments.consumer_begins(spec)
            self.on_gone.connect(partial(shared.instruments.consumer_deleted, spec))
        self._stop = anyio.Event()
        self._ending = anyio.Event()  # set when it was stopped or the consumer is deleted
        self._ended = anyio.Event()
        self._drain = Drain(shared, spec.name, self.fetcher, leased, acknowledger, self.actors)

    @property
    def gone(self) -> bool:
        """Whether the consumer was deleted."""
        return self.settings.gone

    async def run(self) -> None:
        """Run until `stop` is called or the consumer is deleted, then drain."""
        self._history_watch.join(self._verifier, self.cancel)
        if self._loop_watch is not None:
            self._loop_watch.join(self)
        try:
            await self._run()
        finally:
            self._history_watch.leave(self._verifier)
            if self._loop_watch is not None:
                self._loop_watch.leave(self)
            self._ended.set()

    async def _run(self) -> None:
        name = self.spec.name
        low, high = self._handling.concurrency
        if self._priorities.differ:
            self.actors.rank = self._rank
        fetched, acted = anyio.Event(), anyio.Event()
        async with self._runner, anyio.create_task_group() as group:
            group.start_soon(run_with_retry, f"{name}: settling", self.settler.run)
            group.start_soon(_set_at_end, acted, self.actors.run, low)
            group.start_soon(_set_at_end, fetched, run_with_retry, f"{name}: leasing", self._fetch)
            group.start_soon(run_with_retry, f"{name}: extending", self.keeper.run)
            if self._timeouts is not None:
                group.start_soon(self._timeouts.run)
            if low < high:
                group.start_soon(self._scaler.run)
            group.start_soon(self._await_stop)
            group.start_soon(self.dead_letters.run)
            await self._ending.wait()
            self._priorities.leave(self._rank)
            await self._drain.run(fetched, acted)
            await self.dead_letters.finish(0.0 if self._drain.hurried else self._shutdown_timeout)
            with anyio.move_on_after(CHECK_OUT), suppress(StoreUnavailable):
                await self._verifier.check_out()
            group.cancel_scope.cancel()

    async def _fetch(self, database_retry: DatabaseRetry) -> None:
        """Fetch until stopped or until the consumer is deleted. Raises `StoreUnavailable`."""
        try:
            await self.fetcher.run(database_retry)
        except UnknownConsumer:
            self.settings.gone = True
            self.fetcher.stop()  # also ends `until_finished`
            self._ending.set()
            self.on_gone()

    async def _await_stop(self) -> None:
        """Begin to drain with a time limit for handlers after `stop`. If the consumer was deleted
        there is no limit."""
        await self._stop.wait()
        self._drain.limit()
        self._ending.set()

    async def idle(self) -> None:
        """Wait until nothing is left to lease, to handle, to settle or to retry."""
        await self.fetcher.until_finished()
        await self.dead_letters.finish()
        if self.gone:
            await self._ended.wait()

    async def notice_time(self, *, extend: bool) -> None:
        """Do what is due after a test moved the clock, and what a live worker would have done meanwhile."""
        if self._timeouts is not None:
            self._timeouts.stop_overdue()
        if extend and self.in_flight.leases:
            await self.keeper.extend()
        self.settler.wake()
        self.fetcher.hurry()

    def allow_waiting(self, patient: bool) -> None:
        """Set whether batches may wait to fill."""
        if self._batches is not None:
            self._batches.allow_waiting(patient)

    def cancel(self, cancelled: Mapping[int, Iterable[int]]) -> None:
        """Settle messages that an operator has cancelled, given by lease, without handling them, and stop the handlers
        that are at them. Those of other consumers are ignored."""
        if self.in_flight.note_cancelled(cancelled):
            self.actors.stop_cancelled()

    def stop(self) -> None:
        """Begin to drain."""
        self._stop.set()

    def hurry(self) -> None:
        """Stop the handlers that still run, now."""
        self._drain.hurry()

    def statistics(self) -> dict[str, Any]:
        """Return counts and states of every part, whether the consumer was deleted, and the owner of the leases."""
        return {
            "deleted": self.gone,
            "owner": str(self._stored.owner),
            "leased": self.fetcher.leased,
            "dead_lettered": self.dead_letters.count,
            **self._scaling(),
            **self.lanes.statistics(),
            **self.in_flight.statistics(),
            **self.actors.statistics(),
        }

    def _reason(self, now: float) -> Reason:
        """Return the reason for the number of actors."""
        if self.gone:
            return Reason.of("deleted")
        if self.breaker is not None and not self.breaker.closed:
            return Reason.of("breaker")
        if self.actors.held:
            return Reason.of("priority")
        limit = self.settings.spec.rate_limit
        if limit is not None and now - self.fetcher.calls.limited_at <= max(LIMITED, 2 / limit):
            return Reason.of("rate_limit", limit)
        return self.governor.decision.reason

    def _scaling(self) -> dict[str, Any]:
        """Return the reason for the number of actors, the latest decisions, the percentiles of what messages take, and
        the state of the circuit breaker if there is one."""
        now = self._clock()
        reason = self._reason(now)
        decisions = [
            {"ago": now - d.at, "actors": d.actors, "reason": d.reason.text, "rate": d.rate, "latency": d.latency}
            for d in list(self.governor.history)  # copied, because exporters call this from other threads, too
        ]
        breaker = {} if self.breaker is None else {"breaker": self.breaker.statistics()}
        measured = self._durations.percentiles(now)
        durations = None if measured is None else msgspec.structs.asdict(measured)
        return {
            "reason": reason.text,
            "reason_code": reason.code,
            "decisions": decisions,
            "durations": durations,
            **breaker,
        }


def _tracker(spec: ConsumerSpec, handling: Handling, shared: Shared) -> InFlightTracker[Message]:
    tracker = InFlightTracker[Message]() if shared.witness is None else shared.witness.in_flight(spec)
    # With durable lanes the next message of a key waits for the ack of the one before.
    tracker.linger = 0.0 if handling.rests else shared.timings.linger
    tracker.gather = 0.0 if handling.rests or shared.witness is not None else shared.timings.gather
    return tracker


def _lanes(handling: Handling) -> Lanes[Message]:
    if handling.rests:
        return DurableLanes()
    return Lanes() if handling.key_concurrency is None else WideLanes(handling.key_concurrency)


async def _set_at_end(ended: anyio.Event, run: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Run, and set `ended` at the end, even after an error."""
    try:
        await run(*args)
    finally:
        ended.set()
