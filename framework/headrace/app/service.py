"""The service: all consumers of one process, the listener that wakes them, and the janitor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from random import random
from typing import Any

import anyio
import anyio.lowlevel

from headrace import store
from headrace.app import capture
from headrace.app.attached import Attached, FollowsStreams, HasStatistics
from headrace.app.consumer import Consumer
from headrace.app.heartbeats import Heartbeats
from headrace.app.limits import SERVICE_LIMITS, ServiceLimits
from headrace.app.periodic import runner as periodic
from headrace.app.periodic.schedule import Schedule
from headrace.app.readiness import NOT_RUNNING, ConsumerState, Readiness, assess
from headrace.model.errors import ConfigurationError
from headrace.model.log import Log
from headrace.runtime.formats.format import StreamFormat
from headrace.runtime.maintenance.janitor import Janitor
from headrace.runtime.maintenance.survey import Survey
from headrace.runtime.pipeline.pipeline import Pipeline
from headrace.runtime.pipeline.shared import Shared
from headrace.sources.postgres.spec import PostgresSpec
from headrace.store.database.retry import DatabaseRetry, maintain, run_with_retry

log = Log("headrace")


class Service:
    """Runs consumers on an open database until it is stopped, then drains them.

    Attributes:
        pipelines: one for each consumer, after `prepare`.
        on_all_deleted: called when the last of the consumers was deleted.
    """

    def __init__(
        self,
        consumers: Sequence[Consumer],
        shared: Shared,
        attached: Sequence[Attached] = (),
        captures: Sequence[PostgresSpec] = (),
        limits: ServiceLimits = SERVICE_LIMITS,
        formats: Mapping[str, StreamFormat] | None = None,
        schedules: Sequence[Schedule] = (),
    ) -> None:
        self._database = database = shared.database
        self._consumers = consumers
        self._captures = captures
        self._schedules = schedules
        self._shared = shared
        self._attached = attached
        self._followers = [part for part in attached if isinstance(part, FollowsStreams)]
        self._limits = limits
        self._formats = {} if formats is None else formats
        self._running_parts: list[Attached] = []  # those that have started and not ended
        self.pipelines: list[Pipeline] = []
        self._janitor = Janitor(database, self.published, limits.janitor)
        self._heartbeats = Heartbeats(database, self._summary)
        self._listening = anyio.CancelScope()
        self._stopping = anyio.Event()
        self.on_all_deleted: Callable[[], None] = lambda: None
        self._running = False
        self._by_stream: dict[int, list[Pipeline]] = {}
        self._by_name: dict[str, list[Pipeline]] = {}

    async def prepare(self) -> None:
        """Declare the sources, the schedules and the consumers, and log what changed.

        Raises:
            StoreUnavailable: the database can't be reached.
            SchemaError: the schema does not serve this process any more.
        """
        await capture.declare(self._database, self._captures)
        await periodic.declare(self._database, self._schedules)
        for consumer in self._consumers:
            spec = consumer.spec
            stream_id = await store.create_stream(self._database, spec.stream)
            if consumer.handling.publishes is not None:
                await store.create_stream(self._database, consumer.handling.publishes)
            declared = await store.declare_consumer(self._database, spec)
            for setting, (before, now) in declared.changed.items():
                log.info(
                    "consumer setting changed",
                    consumer=spec.name,
                    stream=spec.stream,
                    setting=setting,
                    before=repr(before),
                    now=repr(now),
                )
            if declared.new:
                log.info("consumer created", consumer=spec.name, stream=spec.stream, deliver_policy=spec.deliver_policy)
            stored_as = self._formats.get(spec.stream)
            pipeline = Pipeline(declared.id, spec, consumer.handler, consumer.handling, self._shared, stored_as)
            pipeline.on_gone.connect(partial(self._consumer_deleted, pipeline))
            self.pipelines.append(pipeline)
            self._by_stream.setdefault(stream_id, []).append(pipeline)
            self._by_name.setdefault(spec.stream, []).append(pipeline)
        if self._shared.witness is None:
            await self._heartbeats.announce()

    async def run(self) -> None:
        """Run until `stop`, and until the drain has ended."""
        with nullcontext() if self._shared.loop_watch is None else self._shared.loop_watch:
            await self._run()

    async def _run(self) -> None:
        async with anyio.create_task_group() as others:
            others.start_soon(run_with_retry, "listening", self._listen)
            others.start_soon(self._stop_needless_listening)
            others.start_soon(maintain, "subscriptions of other processes", self._find_unsubscribed)
            others.start_soon(run_with_retry, "subscribing", self._shared.subscriptions.run)
            others.start_soon(self._shared.history_watch.run, self._database)
            if self._shared.witness is None:
                if self._database.maintains:
                    others.start_soon(self._janitor.run)
                else:
                    log.info(
                        "maintenance left to other processes",
                        hint="this database role may not do it, run a process as the schema's owner or with `admin`",
                    )
                others.start_soon(self._heartbeats.run)
                if self._shared.loop_watch is not None:
                    self._shared.loop_watch.heartbeat = self._heartbeats.send_blocked
            instruments = self._shared.instruments
            if instruments is not None and instruments.survey_every is not None and self._shared.surveys:
                names = [(consumer.spec.stream, consumer.spec.name) for consumer in self._consumers]
                others.start_soon(maintain, "surveying", Survey(self._database, names, instruments).run)
            self._running = True
            try:
                async with anyio.create_task_group() as consumers:
                    consumers.start_soon(self._stopping.wait)  # an app that only publishes has a janitor, too
                    for pipeline in self.pipelines:
                        consumers.start_soon(self._run_one, pipeline)
                        # Let other tasks run: thousands of pipelines take seconds to start.
                        await anyio.lowlevel.checkpoint()
                    for part in self._attached:
                        consumers.start_soon(self._run_attached, part)
            finally:
                self._running = False
            others.cancel_scope.cancel()

    async def _run_one(self, pipeline: Pipeline) -> None:
        try:
            await pipeline.run()
        except Exception as error:
            # Log immediately: code that embeds the service may see the error late, or never.
            self._running = False
            spec = pipeline.spec
            hint = "the service stops"
            log.error("consumer failed", consumer=spec.name, stream=spec.stream, error=error, hint=hint, exc_info=error)
            raise

    def _consumer_deleted(self, pipeline: Pipeline) -> None:
        """Handle the deletion of a consumer. Everything else continues."""
        spec = pipeline.spec
        hint = "this process no longer runs it, restart the process to declare it again"
        log.error("consumer deleted", consumer=spec.name, stream=spec.stream, hint=hint)
        if all(other.gone for other in self.pipelines):
            self.on_all_deleted()

    async def _run_attached(self, part: Attached) -> None:
        """Run an attached part. Drain it only while it runs. Otherwise its next run would end immediately."""
        if self._stopping.is_set():
            return
        self._running_parts.append(part)
        try:
            await part.run(self._shared)
        finally:
            self._running_parts.remove(part)

    async def _listen(self, database_retry: DatabaseRetry) -> None:
        def ready() -> None:
            database_retry.cleared()
            self._shared.subscriptions.reset()
            self._set_polling(polling=False)

        while True:
            while not self._should_listen:  # noqa: ASYNC110 - few processes poll this, and seldom
                await anyio.sleep(self._limits.listen_check)
            with anyio.CancelScope() as self._listening:
                try:
                    streams = None if self._followers else self._by_stream
                    await store.listen(self._database, self._notified, ready, streams)
                finally:
                    self._set_polling(polling=True)

    async def _find_unsubscribed(self, database_retry: DatabaseRetry) -> None:
        """Listen again for consumers to which no other process is subscribed any more. Raises `StoreUnavailable`."""
        while True:
            await anyio.sleep(self._limits.unsubscribed_check * (0.5 + random()))
            fetchers = {
                p.consumer: p.fetcher for p in self.pipelines if not p.fetcher.calls.policy.listen and not p.gone
            }
            if fetchers:
                for consumer in await store.without_subscription(self._database, list(fetchers)):
                    fetchers[consumer].calls.listen_again()
            database_retry.cleared()

    async def _stop_needless_listening(self) -> None:
        """Stop listening when no consumer of this process benefits from it."""
        while True:
            await anyio.sleep(self._limits.listen_check)
            if not self._should_listen:
                self._listening.cancel()

    @property
    def _should_listen(self) -> bool:
        """Whether a consumer of this process benefits from notifications."""
        return bool(self._followers) or any(pipeline.fetcher.calls.policy.listen for pipeline in self.pipelines)

    def _set_polling(self, *, polling: bool) -> None:
        for pipeline in self.pipelines:
            pipeline.fetcher.calls.polling = polling
            pipeline.fetcher.wake()
        for part in self._followers:
            part.set_polling(polling=polling)

    def _notified(self, stream_id: int) -> None:
        for pipeline in self._by_stream.get(stream_id, ()):
            pipeline.fetcher.calls.notified()
        for part in self._followers:
            part.notified(stream_id)

    def published(self, stream: str) -> None:
        """Wake this process's own consumers after it published to a stream, before the notification arrives."""
        for pipeline in self._by_name.get(stream, ()):
            pipeline.fetcher.wake()
        for part in self._followers:
            part.published(stream)

    def scheduled(self) -> None:
        """Note that this process has published a scheduled message."""
        self._janitor.hurry()

    @property
    def draining(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    def drain(self) -> None:
        """Begin to drain, unless it drains already."""
        self._stopping.set()
        for pipeline in self.pipelines:
            pipeline.stop()
        for part in list(self._running_parts):
            part.drain()

    def stop(self) -> None:
        """Begin to drain. If it drains already, stop the handlers that still run."""
        if self._stopping.is_set():
            for pipeline in self.pipelines:
                pipeline.hurry()
            for part in list(self._running_parts):
                part.hurry()
        self.drain()

    def log_unfinished(self) -> None:
        """Log the handlers that still run, with what they work on and where they are. It may be called while the event loop
        is blocked."""
        for pipeline in self.pipelines:
            for delivery, at in pipeline.actors.in_work():
                message = delivery.messages[0]
                log.error(
                    "handler did not stop",
                    consumer=message.consumer,
                    stream=message.stream,
                    key=message.key,
                    seq=message.seq,
                    at=at,
                    hint="the process ends, and the message is delivered again after ack_wait",
                )

    async def idle(self) -> None:
        """Wait until no consumer has anything to lease, handle, settle or retry.

        Raises:
            ConfigurationError: a handler of these consumers calls this.
        """
        for pipeline in self.pipelines:
            if pipeline.actors.call_this:
                raise ConfigurationError(
                    f"A handler of the consumer {pipeline.spec.name!r} calls idle(), and would wait for its own message."
                    " Call idle() outside of handlers, such as in a test."
                )
        for pipeline in self.pipelines:
            await pipeline.idle()

    def readiness(self) -> Readiness:
        """Whether the consumers do their work, and if not, why."""
        if not self._running:
            return NOT_RUNNING
        now = self._shared.time.clock()
        states = {
            f"{p.spec.stream}:{p.spec.name}": ConsumerState(
                unanswered=_since(p.fetcher.unanswered_since, now),
                leased=_since(p.fetcher.leased_at, now),
                breaker=None if p.breaker is None else p.breaker.statistics()["state"],
                deleted=p.gone,
            )
            for p in self.pipelines
        }
        return assess(states, draining=self._stopping.is_set(), max_unanswered=self._limits.unanswered)

    def statistics(self) -> dict[str, Any]:
        """Counters and states of every consumer by name, of the connection pool, and of the attached parts."""
        return self._statistics(self.pipelines)

    def _summary(self) -> dict[str, Any]:
        """`statistics` for the heartbeat, with a limited number of consumers."""
        most = self._limits.reported_consumers
        return {**self._statistics(self.pipelines[:most]), "more_consumers": len(self.pipelines[most:])}

    def _statistics(self, pipelines: Sequence[Pipeline]) -> dict[str, Any]:
        consumers = {f"{p.spec.stream}:{p.spec.name}": p.statistics() for p in pipelines}
        found: dict[str, Any] = {"consumers": consumers, "connections": self._database.statistics()}
        if self._shared.loop_watch is not None:
            found["event_loop"] = {"blocked": self._shared.loop_watch.blocked}
        for part in self._attached:
            if isinstance(part, HasStatistics):
                reported = dict(part.app_statistics())
                consumers.update(reported.pop("consumers", {}))
                found.update(reported)
        return found


def _since(previous: float | None, now: float) -> float | None:
    return None if previous is None else now - previous
