"""Pipelines of push consumers. Each server process runs one per push consumer of the database.

The runtime does leases, order per key, retries, dead letters, concurrency and the circuit breaker.
Only the handler is specific, see `handler`. Several servers share the work like several workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
import anyio.abc
import msgspec

from headrace import store
from headrace.flow.priority import Priorities
from headrace.model.ack_ids import AckIds
from headrace.model.errors import HeadraceError, StoreUnavailable, UnknownConsumer, public_text
from headrace.model.handling import Breaker, Handling
from headrace.model.log import Log
from headrace.model.push import Push
from headrace.model.specs import ConsumerSpec
from headrace.runtime.handlers.handler import Handler
from headrace.runtime.pipeline.pipeline import Pipeline
from headrace.runtime.pipeline.shared import Shared
from headrace.server.push.addresses import AllowedAddresses
from headrace.server.push.handler import PushHandler
from headrace.server.push.http_client import PushClient, PushClients
from headrace.server.push.request_bodies import RequestBodies
from headrace.server.push.signing import RequestSigner
from headrace.server.wire.dialect_answers import ConsumerNamed
from headrace.store import AnswerToRecord, PushConsumer
from headrace.store.database.retry import DatabaseRetry, run_with_retry

log = Log("headrace")

REFRESH_INTERVAL = 2.0
"""Default interval in seconds of the look-up of push consumers."""

RESTART_DELAY = 30.0
"""Seconds before a consumer is started again after its pipeline failed unexpectedly."""

TIMEOUT_MARGIN = 5.0
"""Seconds that the handler's timeout exceeds those of a request and of the wait for its connection, which
normally end first."""

BREAKER = Breaker(failures=20, pause=5.0, longest=60.0)
"""Circuit breaker. An endpoint that only returns errors is probed with one message at a time, so
that an outage of an hour exhausts no messages."""


class _RunningConsumer:
    """A push consumer with a running pipeline."""

    def __init__(self, consumer: PushConsumer, push: Push, pipeline: Pipeline, client: PushClient) -> None:
        self.client = client
        self.consumer = consumer
        self.push = push
        self.pipeline = pipeline
        self.ending = False  # and its end was logged


class _Failure(msgspec.Struct, frozen=True):
    """Why a push consumer doesn't run.

    Attributes:
        name: the stream and the name of the consumer. None if its settings could not be read.
        version: the version of the settings.
        reason: the error in words.
        until: the time at which it starts again, unless its settings change before.
    """

    name: str | None
    version: int
    reason: str
    until: float


class PushConsumers:
    """Runs push consumers beside an app's consumers. See `headrace.app.attached`.

    Args:
        allow: networks to send to though they are not public, such as "10.1.0.0/16", or "private"
            or "loopback".
        refresh_interval: interval in seconds of the look-up of push consumers, since other servers
            create, change and delete them, too.
        answered: called with each answer of an endpoint.

    Raises:
        ConfigurationError: `allow` has anything else.
    """

    def __init__(
        self,
        allow: Iterable[str] = (),
        refresh_interval: float = REFRESH_INTERVAL,
        answered: Callable[[AnswerToRecord], None] = lambda _: None,
    ) -> None:
        self._allowed = AllowedAddresses(allow)
        self._refresh_interval = refresh_interval
        self._answered = answered
        self._running: dict[int, _RunningConsumer] = {}
        self._failures: dict[int, _Failure] = {}
        self._changed = anyio.Event()
        self._look_up_scope: anyio.CancelScope | None = None  # made in `run`, in the event loop
        self._draining = False
        self._polling = True

    async def run(self, shared: Shared) -> None:
        """Push until `drain`, and until the running requests have ended."""
        # Middleware and priorities only apply to the app's own handlers.
        self._shared = shared = msgspec.structs.replace(shared, middleware=(), priorities=Priorities())
        try:
            self._clients = PushClients(self._allowed)
            async with anyio.create_task_group() as group:
                with anyio.CancelScope() as self._look_up_scope:
                    if not self._draining:  # `drain` may come before `run`
                        await run_with_retry(
                            "push consumers", lambda database_retry: self._look_up(database_retry, group)
                        )
        finally:
            self._look_up_scope = None
            self._draining = False  # the app may run again
            self._failures.clear()

    def refresh(self) -> None:
        """Look for push consumers now. Called when this process has created, changed or deleted one."""
        self._changed.set()

    # --- look-up

    async def _look_up(self, database_retry: DatabaseRetry, group: anyio.abc.TaskGroup) -> None:
        """Look for push consumers until cancelled. Raises `StoreUnavailable`."""
        database = self._shared.database
        ack_ids = AckIds(await store.secret(database, "ack_ids"))
        while True:
            self._changed = anyio.Event()
            found = {one.number: one for one in await store.push_consumers(database)}
            for number in self._running.keys() - found.keys():
                self._end(self._running[number], "push consumer removed")
            for number in self._failures.keys() - found.keys():
                del self._failures[number]
            for consumer in found.values():
                await self._update(consumer, ack_ids, group)
            database_retry.cleared()
            with anyio.move_on_after(self._refresh_interval):
                await self._changed.wait()

    async def _update(self, consumer: PushConsumer, ack_ids: AckIds, group: anyio.abc.TaskGroup) -> None:
        """Start a consumer, or leave it running, or stop it so that it starts again with its new settings."""
        running = self._running.get(consumer.number)
        if running is not None and running.consumer.version == consumer.version:
            return
        if running is None and self._waits_to_restart(consumer):
            return
        spec: ConsumerSpec | None = None
        try:
            spec, current_version = await store.consumer_spec(self._shared.database, consumer.number)
            consumer = msgspec.structs.replace(consumer, version=current_version)
            if spec.push is None or self._draining:  # changed just now
                return
            if running is None:
                spec.push.check()  # an earlier version may have accepted what is invalid now
                self._failures.pop(consumer.number, None)
                self._begin(consumer, spec, spec.push, ack_ids, group)
            elif running.push == spec.push:
                running.consumer = consumer  # the pipeline applies other settings itself
            else:
                self._end(running, "push settings changed")
        except UnknownConsumer:  # deleted just now
            return
        except StoreUnavailable:
            raise
        except Exception as error:  # invalid settings, which must not stop other consumers
            self._report_failure(consumer, error, spec)

    def _report_failure(self, consumer: PushConsumer, error: Exception, spec: ConsumerSpec | None = None) -> None:
        """Log a failure, and let the consumer start again later."""
        log.error(
            "push consumer failed",
            consumer=consumer.id if spec is None else spec.name,
            stream=None if spec is None else spec.stream,
            error=error,
            seconds=RESTART_DELAY,
            hint="it starts again after these seconds",
            exc_info=None if isinstance(error, HeadraceError) else error,  # a sentence about the settings is enough
        )
        self._failures[consumer.number] = _Failure(
            None if spec is None else f"{spec.stream}:{spec.name}",
            consumer.version,
            public_text(error),
            self._shared.time.clock() + RESTART_DELAY,
        )

    def _waits_to_restart(self, consumer: PushConsumer) -> bool:
        """Return whether it failed a moment ago, with the settings that it still has."""
        failure = self._failures.get(consumer.number)
        return failure is not None and failure.version == consumer.version and failure.until > self._shared.time.clock()

    # --- one consumer

    def _begin(
        self,
        consumer: PushConsumer,
        spec: ConsumerSpec,
        push: Push,
        ack_ids: AckIds,
        group: anyio.abc.TaskGroup,
    ) -> None:
        client = self._clients.open(consumer.stream_number)
        push_handler = PushHandler(
            push,
            RequestBodies(
                consumer.number,
                consumer.stream_id,
                ack_ids,
                ConsumerNamed(consumer.id, spec.name) if push.shape == "change" else None,
            ),
            RequestSigner(consumer.id, push.key),
            client,
            _user_agent(),
            self._shared.time.date,
            lambda **answer: self._answered(AnswerToRecord(consumer=consumer.number, **answer)),
        )
        pipeline = Pipeline(consumer.number, spec, _handler(push_handler, push), _handling(push), self._shared)
        pipeline.fetcher.calls.polling = self._polling
        self._running[consumer.number] = running = _RunningConsumer(consumer, push, pipeline, client)
        pipeline.on_gone.connect(lambda: self._log_end(running, "push consumer removed"))
        group.start_soon(self._run, running)

    def _end(self, running: _RunningConsumer, event: str) -> None:
        """Drain a pipeline. Once it has ended, its consumer is looked up again."""
        self._log_end(running, event)
        running.pipeline.stop()

    def _log_end(self, running: _RunningConsumer, event: str) -> None:
        if not running.ending:
            running.ending = True
            log.info(event, consumer=running.pipeline.spec.name, stream=running.pipeline.spec.stream)

    async def _run(self, running: _RunningConsumer) -> None:
        try:
            await running.pipeline.run()
        except* Exception as failures:
            self._report_failure(running.consumer, failures, running.pipeline.spec)
        finally:
            del self._running[running.consumer.number]
            self._changed.set()
            self._clients.close(running.client)

    # --- events from the app

    def drain(self) -> None:
        """Send nothing more. Running requests end normally."""
        self._draining = True
        if self._look_up_scope is not None:
            self._look_up_scope.cancel()
        for running in self._running.values():
            running.pipeline.stop()

    def hurry(self) -> None:
        """Cancel running requests and release their messages."""
        for running in self._running.values():
            running.pipeline.hurry()

    def notified(self, stream_id: int) -> None:
        """Wake the pipelines of a stream after a commit by any process."""
        for running in self._running.values():
            if running.consumer.stream_number == stream_id:
                running.pipeline.fetcher.wake()

    def published(self, stream: str) -> None:
        """Wake the pipelines of a stream, given by name, after a publish by this process."""
        for running in self._running.values():
            if running.pipeline.spec.stream == stream:
                running.pipeline.fetcher.wake()

    def set_polling(self, *, polling: bool) -> None:
        """Set whether `notified` is called on commits."""
        self._polling = polling
        for running in self._running.values():
            running.pipeline.fetcher.calls.polling = polling
            running.pipeline.fetcher.wake()

    def statistics(self) -> dict[str, Any]:
        """Return counts and states of all push consumers by name."""
        return {f"{p.spec.stream}:{p.spec.name}": p.statistics() for p in self._pipelines()}

    def app_statistics(self) -> dict[str, Any]:
        """Return the consumers' part of the app's statistics, in the form of the app's own consumers. Of one that
        doesn't run because of a failure, there is only the reason."""
        consumers = self.statistics()
        for failure in list(self._failures.values()):  # after the others, since heartbeats have only the first ones
            if failure.name is not None:
                consumers.setdefault(failure.name, {"reason": failure.reason})
        return {"consumers": consumers}

    def _pipelines(self) -> list[Pipeline]:
        return [running.pipeline for running in list(self._running.values())]


def _user_agent() -> str:
    """Return the User-Agent of the requests."""
    try:
        return f"headrace/{version('headrace')}"
    except PackageNotFoundError:  # running from a checkout that is not installed
        return "headrace"


def _handler(push_handler: PushHandler, push: Push) -> Handler:
    handler = Handler(
        push_handler.send_message if push.batch is None else push_handler.send_batch, batch=push.batch is not None
    )
    handler.decode = _undecoded
    return handler


def _undecoded(payload: str) -> str:
    """Return a payload undecoded. Payloads are sent as they are stored, so none can be invalid."""
    return payload


def _handling(push: Push) -> Handling:
    return Handling(
        concurrency=push.concurrency,
        timeout=2 * push.timeout + TIMEOUT_MARGIN,
        batch=push.batch,
        runner="async",
        breaker=BREAKER,
    )
