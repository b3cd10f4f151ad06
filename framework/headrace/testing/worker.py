"""A worker of the test kit: the app's service from its start to its end or its crash, and the operations that
a test needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import anyio
import anyio.lowlevel

from headrace import store
from headrace.app.app import App
from headrace.app.service import Service
from headrace.flow.in_flight import InFlightTracker
from headrace.model.errors import LeaseLost
from headrace.model.outcomes import Reject, Retry, deciding
from headrace.model.specs import ConsumerSpec
from headrace.runtime.calls import Call
from headrace.runtime.maintenance.scheduler import Scheduler
from headrace.runtime.messages.message import Message
from headrace.runtime.pipeline.pipeline import Pipeline
from headrace.testing.clock import Clock
from headrace.testing.outcomes import Record, WatchedTracker

DUE_WITHIN = 0.01
"""Something scheduled counts as due if it is due within this number of seconds."""


class Worker:
    """One run of a service, which records its outcomes.

    Args:
        app: the app, which is connected.
        clock: the time.
        record: where outcomes are recorded.
        crashes: how many times the worker has to crash, by the consumer's full name. Counted down.
        up: called when the consumers start.
        down: called when they crash.

    Attributes:
        at_work: the deliveries that handlers are processing.
        crashed: whether the worker has crashed.
    """

    def __init__(
        self,
        app: App,
        clock: Clock,
        record: Record,
        crashes: dict[str, int],
        up: Callable[[], None],
        down: Callable[[], None],
    ) -> None:
        self._app = app
        self._clock = clock
        self._record = record
        self._crashes = crashes
        self._up = up
        self._down = down
        self._scope = anyio.CancelScope()
        self._stopping = False
        self._watchers: set[anyio.CancelScope] = set()
        self._service: Service | None = None
        self.at_work: dict[int, Any] = {}
        self.crashed = False

    async def run(self) -> None:
        """Run the service. Raises the error that prevents or ends it."""
        async with self._app._serving() as self._service:
            with self._scope:
                self._up()
                if self._stopping:
                    self.stop()
                await self._service.run()

    def stop(self) -> None:
        """Stop immediately, and release the messages that handlers are processing."""
        self._stopping = True
        if self._service is not None:
            self._service.stop()
            if self.at_work:
                self._service.stop()

    def crash(self) -> None:
        """End like a killed process: settle nothing and release nothing."""
        self.crashed = True
        self._down()
        for delivery in self.at_work.values():
            for message in delivery.messages:
                if not message.settled:
                    self._record.note(message, "crashed")
        self._scope.cancel()
        self.cancel_waits()

    def cancel_waits(self) -> None:
        """Cancel the waits for this worker, which won't do anything any more."""
        for watcher in self._watchers:
            watcher.cancel()

    @property
    def pipelines(self) -> list[Pipeline]:
        """The pipelines of its consumers."""
        return [] if self._service is None else self._service.pipelines

    # --- called by the service

    def in_flight(self, spec: ConsumerSpec) -> InFlightTracker[Message]:
        """An in-flight tracker that records outcomes."""
        return WatchedTracker(spec, self._record, lambda: self.crashed)

    def inside(self, spec: ConsumerSpec, call: Call) -> Call:
        """Wrap the handler's call. The worker may crash after it."""
        name = full_name(spec)

        async def inside(payload: Any, delivery: Any, **dependencies: Any) -> Any:
            result = await call(payload, delivery, **dependencies)
            if self._crashes.get(name, 0) and not self.crashed:
                self._crashes[name] -= 1
                self.crash()
            if self.crashed:  # perhaps because of another handler, just now: this one must not commit anything
                await anyio.sleep_forever()
            return result

        return inside

    def outside(self, spec: ConsumerSpec, call: Call) -> Call:
        """Wrap the whole call. Records the delivery in `at_work` while it runs, and the error that it raises."""

        async def outside(payload: Any, delivery: Any) -> Any:
            self.at_work[id(delivery)] = delivery
            try:
                return await call(payload, delivery)
            except Exception as error:
                if not isinstance(deciding(error), (Retry, Reject, LeaseLost)):
                    self._record.errors.append(error)
                raise
            finally:
                del self.at_work[id(delivery)]

        return outside

    # --- called by the harness

    async def process_due(self, scheduler: Scheduler) -> bool:
        """Do everything that is due. Returns whether there was nothing to do, from the start to the end of the
        call, and the worker is alive.
        """
        with anyio.CancelScope() as scope:
            self._watchers.add(scope)
            self._allow_waiting(False)
            try:
                before = self._leased() if self._idle() else None
                published = await self._publish_due(scheduler)
                for pipeline in self.pipelines:
                    await pipeline.fetcher.until_idle()
                await anyio.lowlevel.checkpoint()
                return not self.crashed and not published and self._idle() and self._leased() == before
            finally:
                self._watchers.discard(scope)
                self._allow_waiting(True)
        return False

    def _allow_waiting(self, patient: bool) -> None:
        for pipeline in self.pipelines:
            pipeline.allow_waiting(patient)

    def _idle(self) -> bool:
        return not self.at_work and not any(p.in_flight.held or p.actors.busy for p in self.pipelines)

    def _leased(self) -> int:
        return sum(pipeline.fetcher.leased for pipeline in self.pipelines)

    async def _publish_due(self, scheduler: Scheduler) -> int:
        """Publish the scheduled messages that are due. Returns how many."""
        assert self._service is not None
        total, due_in = await scheduler.deliver(self._clock.date(), self._service.published)
        while due_in is not None and due_in <= DUE_WITHIN:
            count, due_in = await scheduler.deliver(self._clock.date(), self._service.published)
            total += count
        return total

    def longest_step(self) -> float:
        """The most seconds by which the clock may be moved at a time, so that leases in use can be extended."""
        return min((p.settings.spec.ack_wait / 2 for p in self.pipelines if p.in_flight.leases), default=float("inf"))

    async def answered(self) -> None:
        """Wait until no lease call is under way. One that began before the clock is moved would take what expires then,
        with the time from before.
        """
        while any([await pipeline.fetcher.answered() for pipeline in self.pipelines]):
            pass

    async def notice_time(self, *, extend: bool) -> None:
        """After the clock was moved, do what the parts would have done in between, or would do when they next
        wake up.
        """
        for pipeline in self.pipelines:
            if not extend and pipeline.in_flight.leases and not pipeline.gone:
                await self._expire(pipeline.spec)
            await pipeline.notice_time(extend=extend)

    async def _expire(self, spec: ConsumerSpec) -> None:
        """Take expired leases from their owners, as any lease call does. This one asks for no messages."""
        consumer = await store.consumer_id(self._app.database, spec.stream, spec.name)
        await store.lease(self._app.database, consumer, uuid4(), 0, now=self._clock.now())


def full_name(spec: ConsumerSpec) -> str:
    """The consumer's name with the name of its stream, which is unique."""
    return f"{spec.stream}:{spec.name}"
