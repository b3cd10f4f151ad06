"""A worker: the app's service from its start to its end, or to its crash, and what a test does with it in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import anyio
import anyio.lowlevel

from headrace import store
from headrace.app.app import App
from headrace.app.service import Service
from headrace.flow.custody import Custody
from headrace.model.errors import LeaseLost
from headrace.model.outcomes import Reject, Retry
from headrace.model.specs import ConsumerSpec
from headrace.runtime.message import Message
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.wiring import Call
from headrace.testing.clock import Clock
from headrace.testing.outcomes import Record, WatchedCustody

NOW = 0.01
"""Seconds within which something scheduled counts as due."""


class Worker:
    """One life of a service, and its witness.

    Args:
        app: the app, which is connected.
        clock: the time.
        record: where outcomes are noted.
        crashes: how often it is to die, by the consumer's full name; counted down.
        up: called when the consumers start ...
        down: ... and when they crash.

    Attributes:
        at_work: the deliveries that handlers have at the moment.
        crashed: whether it has died.
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
        self._life = anyio.CancelScope()
        self._stopping = False
        self._watchers: set[anyio.CancelScope] = set()
        self._service: Service | None = None
        self.at_work: dict[int, Any] = {}
        self.crashed = False

    async def run(self) -> None:
        """Live. Raises what keeps it from that."""
        async with self._app._serving() as self._service:
            with self._life:
                self._up()
                if self._stopping:
                    self.stop()
                await self._service.run()

    def stop(self) -> None:
        """End at once: what handlers are doing is given back."""
        self._stopping = True
        if self._service is not None:
            self._service.stop()
            if self.at_work:
                self._service.stop()

    def die(self) -> None:
        """End as a killed process does: nothing is settled, nothing is given back."""
        self.crashed = True
        self._down()
        for delivery in self.at_work.values():
            for message in delivery.messages:
                if not message.settled:
                    self._record.note(message, "crashed")
        self._life.cancel()
        self.forsake()

    def forsake(self) -> None:
        """Let nobody wait any longer for what it would have done."""
        for watcher in self._watchers:
            watcher.cancel()

    @property
    def pipelines(self) -> list[Pipeline]:
        """Those of its consumers."""
        return [] if self._service is None else self._service.pipelines

    # --- what a witness is asked for

    def custody(self, spec: ConsumerSpec) -> Custody[Message]:
        """One that tells the record."""
        return WatchedCustody(spec, self._record, lambda: self.crashed)

    def inside(self, spec: ConsumerSpec, call: Call) -> Call:
        """The handler's call, after which the worker may die."""
        name = full_name(spec)

        async def inside(payload: Any, delivery: Any, **dependencies: Any) -> Any:
            result = await call(payload, delivery, **dependencies)
            if self._crashes.get(name, 0) and not self.crashed:
                self._crashes[name] -= 1
                self.die()
            if self.crashed:  # perhaps of another handler, just now: nothing of this one may be committed any more
                await anyio.sleep_forever()
            return result

        return inside

    def outside(self, spec: ConsumerSpec, call: Call) -> Call:
        """The whole call, noted while it lasts, and what it raises."""

        async def outside(payload: Any, delivery: Any) -> Any:
            self.at_work[id(delivery)] = delivery
            try:
                return await call(payload, delivery)
            except (Retry, Reject, LeaseLost):
                raise
            except Exception as error:
                self._record.errors.append(error)
                raise
            finally:
                del self.at_work[id(delivery)]

        return outside

    # --- what a test does with it

    async def settle_down(self, schedule: store.Schedule) -> bool:
        """Work off what is due; whether there was nothing, to begin with and in all that time, and the worker lives."""
        with anyio.CancelScope() as scope:
            self._watchers.add(scope)
            self._be_patient(False)
            try:
                before = self._leased() if self._idle() else None
                published = await self._publish_due(schedule)
                for pipeline in self.pipelines:
                    await pipeline.fetcher.quiet()
                await anyio.lowlevel.checkpoint()
                return not self.crashed and not published and self._idle() and self._leased() == before
            finally:
                self._watchers.discard(scope)
                self._be_patient(True)
        return False

    def _be_patient(self, patient: bool) -> None:
        for pipeline in self.pipelines:
            pipeline.be_patient(patient)

    def _idle(self) -> bool:
        return not self.at_work and not any(p.custody.held or p.actors.busy for p in self.pipelines)

    def _leased(self) -> int:
        return sum(pipeline.fetcher.leased for pipeline in self.pipelines)

    async def _publish_due(self, schedule: store.Schedule) -> int:
        """Publish what was scheduled and is due. Returns how many messages."""
        assert self._service is not None
        total, due_in = await schedule.deliver(self._clock.date(), self._service.published)
        while due_in is not None and due_in <= NOW:
            count, due_in = await schedule.deliver(self._clock.date(), self._service.published)
            total += count
        return total

    def longest_step(self) -> float:
        """By how many seconds the clock may be moved at a time, so that leases which are at work can be extended."""
        return min((p.settings.spec.ack_wait / 2 for p in self.pipelines if p.custody.leases), default=float("inf"))

    async def notice_time(self, *, extend: bool) -> None:
        """The clock was moved: do now what the parts would have done in between, or would do when they next wake."""
        for pipeline in self.pipelines:
            if not extend and pipeline.custody.leases and not pipeline.gone:
                await self._expire(pipeline.spec)
            await pipeline.notice_time(extend=extend)

    async def _expire(self, spec: ConsumerSpec) -> None:
        """Take leases that are past their time from who has them, as any lease call does; this one asks for no message."""
        consumer = await store.consumer_id(self._app.database, spec.stream, spec.name)
        await store.lease(self._app.database, consumer, uuid4(), 0, now=self._clock.now())


def full_name(spec: ConsumerSpec) -> str:
    """The consumer's name with that of its stream, which no other has."""
    return f"{spec.stream}:{spec.name}"
