"""Push consumers' pipelines. Each server process runs one per push consumer of the database.

The runtime does leases, order per key, retries, dead letters, concurrency and the circuit breaker.
Only the handler is specific, see `sender`. Several servers share the work like several workers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import aiohttp
import anyio
import anyio.abc
import msgspec

from headrace import store
from headrace.flow.priority import Priorities
from headrace.model.ack_ids import AckIds
from headrace.model.errors import StoreUnavailable, UnknownConsumer
from headrace.model.handling import Breaker, Handling
from headrace.model.push import Push
from headrace.model.specs import ConsumerSpec
from headrace.runtime.handlers.handler import Handler
from headrace.runtime.pipeline.pipeline import Pipeline
from headrace.runtime.pipeline.shared import Shared
from headrace.server.push.addresses import Allowed
from headrace.server.push.connecting import session
from headrace.server.push.sender import Sender
from headrace.server.push.shapes import Shapes
from headrace.server.push.signing import Stamps
from headrace.store import PushConsumer
from headrace.store.database.retry import DatabaseRetry, run_with_retry

logger = logging.getLogger("headrace")

LOOK = 2.0
"""Interval in seconds of the look-up of push consumers, since other servers create, change and
delete them, too."""

REPAIR = 30.0
"""Seconds before a consumer is started again after its pipeline failed unexpectedly."""

SPARE = 5.0
"""Seconds that the handler's timeout exceeds the request's, which normally ends first."""

BREAKER = Breaker(failures=20, pause=5.0, longest=60.0)
"""Circuit breaker. An endpoint that only returns errors is probed with one message at a time, so
that an outage of an hour exhausts no messages."""


class _Running:
    """A push consumer with a running pipeline."""

    def __init__(self, known: PushConsumer, push: Push, pipeline: Pipeline) -> None:
        self.known = known
        self.push = push
        self.pipeline = pipeline
        self.ending = False  # and its end was logged


class Pushing:
    """Runs push consumers beside an app's consumers. See `headrace.app.attached`.

    Args:
        allow: networks to send to though they are not public, such as "10.1.0.0/16", or "private"
            or "loopback".

    Raises:
        ConfigurationError: `allow` has anything else.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._allowed = Allowed(allow)
        self._running: dict[int, _Running] = {}
        self._resting: dict[int, float] = {}
        self._news = anyio.Event()
        self._looking: anyio.CancelScope | None = None  # made in `run`, in the event loop
        self._draining = False
        self._deaf = True

    async def run(self, shared: Shared) -> None:
        """Push until `drain`, and until the running requests have ended."""
        # Middleware and priorities only apply to the app's own handlers.
        self._shared = shared = msgspec.structs.replace(shared, middleware=(), priorities=Priorities())
        try:
            async with session(self._allowed) as client, anyio.create_task_group() as group:
                with anyio.CancelScope() as self._looking:
                    if not self._draining:  # `drain` may come before `run`
                        await run_with_retry(
                            "finding push consumers", lambda database_retry: self._look(database_retry, client, group)
                        )
        finally:
            self._looking = None
            self._draining = False  # the app may run again
            self._resting.clear()

    def look(self) -> None:
        """Look for push consumers now. Called when this process has created, changed or deleted one."""
        self._news.set()

    # --- look-up

    async def _look(
        self, database_retry: DatabaseRetry, client: aiohttp.ClientSession, group: anyio.abc.TaskGroup
    ) -> None:
        """Look for push consumers until cancelled. Raises `StoreUnavailable`."""
        database = self._shared.database
        ack_ids = AckIds(await store.secret(database, "ack_ids"))
        while True:
            self._news = anyio.Event()
            found = {one.number: one for one in await store.push_consumers(database)}
            for number in self._running.keys() - found.keys():
                self._end(self._running[number], "is pushed no longer")
            for known in found.values():
                await self._see_to(known, client, ack_ids, group)
            database_retry.cleared()
            with anyio.move_on_after(LOOK):
                await self._news.wait()

    async def _see_to(
        self, known: PushConsumer, client: aiohttp.ClientSession, ack_ids: AckIds, group: anyio.abc.TaskGroup
    ) -> None:
        """Start a consumer, or leave it running, or stop it so that it starts again with its new settings."""
        running = self._running.get(known.number)
        if running is not None and running.known.version == known.version:
            return
        if running is None and self._rests(known.number):
            return
        try:
            spec, newest = await store.consumer_spec(self._shared.database, known.number)
            known = msgspec.structs.replace(known, version=newest)
            if spec.push is None or self._draining:  # changed just now
                return
            if running is None:
                self._begin(known, spec, spec.push, client, ack_ids, group)
            elif running.push == spec.push:
                running.known = known  # the pipeline applies other settings itself
            else:
                self._end(running, "is pushed otherwise from now on")
        except UnknownConsumer:  # deleted just now
            return
        except StoreUnavailable:
            raise
        except Exception:  # invalid settings, which must not stop other consumers
            self._fail(known.number, f"the push consumer {known.id}")

    def _fail(self, number: int, who: str) -> None:
        logger.exception("%s can't be pushed, and is tried again in %g s", who, REPAIR)
        self._resting[number] = self._shared.time.clock() + REPAIR

    def _rests(self, number: int) -> bool:
        return self._resting.get(number, float("-inf")) > self._shared.time.clock()

    # --- one consumer

    def _begin(
        self, known: PushConsumer, spec: ConsumerSpec, push: Push, client: aiohttp.ClientSession, ack_ids: AckIds,
        group: anyio.abc.TaskGroup,
    ) -> None:  # fmt: skip
        sender = Sender(
            push,
            Shapes(known.number, known.stream_id, ack_ids),
            Stamps(known.id, push.key),
            client,
            _agent(),
            self._shared.time.date,
        )
        pipeline = Pipeline(known.number, spec, _handler(sender, push), _handling(push), self._shared)
        pipeline.fetcher.calls.deaf = self._deaf
        self._running[known.number] = running = _Running(known, push, pipeline)
        pipeline.on_gone.connect(lambda: self._log_end(running, "was deleted, and is pushed no longer"))
        group.start_soon(self._run, running)

    def _end(self, running: _Running, why: str) -> None:
        """Drain a pipeline. Once it has ended, its consumer is looked up again."""
        self._log_end(running, why)
        running.pipeline.stop()

    def _log_end(self, running: _Running, why: str) -> None:
        if not running.ending:
            running.ending = True
            logger.info("%s of %s %s", running.pipeline.spec.name, running.pipeline.spec.stream, why)

    async def _run(self, running: _Running) -> None:
        number, spec = running.known.number, running.pipeline.spec
        try:
            await running.pipeline.run()
        except* Exception:
            self._fail(number, f"{spec.name} of {spec.stream}")
        finally:
            del self._running[number]
            self._news.set()

    # --- events from the app

    def drain(self) -> None:
        """Send nothing more. Running requests end normally."""
        self._draining = True
        if self._looking is not None:
            self._looking.cancel()
        for running in self._running.values():
            running.pipeline.stop()

    def hurry(self) -> None:
        """Cancel running requests and release their messages."""
        for running in self._running.values():
            running.pipeline.hurry()

    def notified(self, stream_id: int) -> None:
        """Wake the pipelines of a stream after a commit by any process."""
        for running in self._running.values():
            if running.known.stream_number == stream_id:
                running.pipeline.fetcher.wake()

    def published(self, stream: str) -> None:
        """Wake the pipelines of a stream, given by name, after a publish by this process."""
        for running in self._running.values():
            if running.pipeline.spec.stream == stream:
                running.pipeline.fetcher.wake()

    def hear(self, *, deaf: bool) -> None:
        """Set whether `notified` is called on commits."""
        self._deaf = deaf
        for running in self._running.values():
            running.pipeline.fetcher.calls.deaf = deaf
            running.pipeline.fetcher.wake()

    def statistics(self) -> dict[str, Any]:
        """Return counts and states of all push consumers by name."""
        return {f"{p.spec.stream}:{p.spec.name}": p.statistics() for p in self._pipelines()}

    def tells(self) -> dict[str, Any]:
        """Return the consumers' part of the app's statistics, in the form of the app's own consumers."""
        return {"consumers": self.statistics()}

    def _pipelines(self) -> list[Pipeline]:
        return [running.pipeline for running in list(self._running.values())]


def _agent() -> str:
    """Return the User-Agent of the requests."""
    try:
        return f"headrace/{version('headrace')}"
    except PackageNotFoundError:  # running from a checkout that is not installed
        return "headrace"


def _handler(sender: Sender, push: Push) -> Handler:
    handler = Handler(sender.one if push.batch is None else sender.many, batch=push.batch is not None)
    handler.decode = _as_it_is
    return handler


def _as_it_is(payload: str) -> str:
    """Return a payload undecoded. Payloads are sent as they are stored, so none can be invalid."""
    return payload


def _handling(push: Push) -> Handling:
    return Handling(
        concurrency=push.concurrency, timeout=push.timeout + SPARE, batch=push.batch, runner="async", breaker=BREAKER
    )
