"""Pushing: a pipeline for each push consumer of the database, in each server process.

Leases, order per key, retries, dead letters, concurrency and the breaker are the runtime's; only the handler is ours, see `sender`. Several
servers share the work as several workers do.
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
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.shared import Shared
from headrace.runtime.weather import Weather, keep_going
from headrace.server.push.addresses import Allowed
from headrace.server.push.connecting import session
from headrace.server.push.sender import Sender
from headrace.server.push.shapes import Shapes
from headrace.server.push.signing import Stamps
from headrace.store import PushConsumer

logger = logging.getLogger("headrace")

LOOK = 2.0
"""Seconds after which the push consumers are looked for again: other servers make, change and delete them, too."""

REPAIR = 30.0
"""Seconds that a consumer rests after its pipeline died of a bug."""

SPARE = 5.0
"""Seconds that the handler has beyond the request's timeout, which ends it otherwise."""

BREAKER = Breaker(failures=20, pause=5.0, longest=60.0)
"""An endpoint that answers nothing but errors is probed with one message at a time, so that an hour's outage exhausts no messages."""


class _Running:
    """A consumer that is being pushed."""

    def __init__(self, known: PushConsumer, push: Push, pipeline: Pipeline) -> None:
        self.known = known
        self.push = push
        self.pipeline = pipeline
        self.ending = False  # and that was logged


class Pushing:
    """Runs beside an app's consumers; see `headrace.app.attached`.

    Args:
        allow: where may be pushed to though it is not public: networks such as "10.1.0.0/16", or "private" or "loopback".

    Raises:
        ConfigurationError: `allow` has something else.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._allowed = Allowed(allow)
        self._running: dict[int, _Running] = {}
        self._resting: dict[int, float] = {}
        self._news = anyio.Event()
        self._looking: anyio.CancelScope | None = None  # made where a loop runs
        self._draining = False
        self._deaf = True

    async def run(self, shared: Shared) -> None:
        """Push until `drain`, and until what is under way has ended."""
        # Middleware and priorities are of the app's own handlers.
        self._shared = shared = msgspec.structs.replace(shared, middleware=(), priorities=Priorities())
        try:
            async with session(self._allowed) as client, anyio.create_task_group() as group:
                with anyio.CancelScope() as self._looking:
                    if not self._draining:  # somebody may have asked to before it began
                        await keep_going("finding push consumers", lambda weather: self._look(weather, client, group))
        finally:
            self._looking = None
            self._draining = False  # the app may run again
            self._resting.clear()

    def look(self) -> None:
        """A push consumer was made, changed or deleted by this process: look now."""
        self._news.set()

    # --- finding them

    async def _look(self, weather: Weather, client: aiohttp.ClientSession, group: anyio.abc.TaskGroup) -> None:
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
            weather.cleared()
            with anyio.move_on_after(LOOK):
                await self._news.wait()

    async def _see_to(
        self, known: PushConsumer, client: aiohttp.ClientSession, ack_ids: AckIds, group: anyio.abc.TaskGroup
    ) -> None:
        """Push this one, or go on with it, or end it so that it begins anew with its new settings."""
        running = self._running.get(known.number)
        if running is not None and running.known.version == known.version:
            return
        if running is None and self._rests(known.number):
            return
        try:
            spec, newest = await store.consumer_spec(self._shared.database, known.number)
            known = msgspec.structs.replace(known, version=newest)
            if spec.push is None or self._draining:  # since just now
                return
            if running is None:
                self._begin(known, spec, spec.push, client, ack_ids, group)
            elif running.push == spec.push:
                running.known = known  # the pipeline sees to the others by itself
            else:
                self._end(running, "is pushed otherwise from now on")
        except UnknownConsumer:  # deleted just now
            return
        except StoreUnavailable:
            raise
        except Exception:  # settings that can't be: the others go on
            self._fail(known.number, f"the push consumer {known.id}")

    def _fail(self, number: int, who: str) -> None:
        logger.exception("%s can't be pushed, and is tried again in %g s", who, REPAIR)
        self._resting[number] = self._shared.time.clock() + REPAIR

    def _rests(self, number: int) -> bool:
        return self._resting.get(number, float("-inf")) > self._shared.time.clock()

    # --- one of them

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
        pipeline.fetcher.deaf = self._deaf
        self._running[known.number] = running = _Running(known, push, pipeline)
        pipeline.on_gone = lambda: self._log_end(running, "was deleted, and is pushed no longer")
        group.start_soon(self._run, running)

    def _end(self, running: _Running, why: str) -> None:
        """Drain it. When that is done, it is looked at anew."""
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

    # --- what the app tells

    def drain(self) -> None:
        """Send nothing more; what is under way ends."""
        self._draining = True
        if self._looking is not None:
            self._looking.cancel()
        for running in self._running.values():
            running.pipeline.stop()

    def hurry(self) -> None:
        """Break off what is under way; it is given back."""
        for running in self._running.values():
            running.pipeline.hurry()

    def notified(self, stream_id: int) -> None:
        """Something was committed to this stream, somewhere."""
        for running in self._running.values():
            if running.known.stream_number == stream_id:
                running.pipeline.fetcher.wake()

    def published(self, stream: str) -> None:
        """This process has published to the stream of this name."""
        for running in self._running.values():
            if running.pipeline.spec.stream == stream:
                running.pipeline.fetcher.wake()

    def hear(self, *, deaf: bool) -> None:
        """From now on `notified` is called, or it isn't."""
        self._deaf = deaf
        for running in self._running.values():
            running.pipeline.fetcher.deaf = deaf
            running.pipeline.fetcher.wake()

    def statistics(self) -> dict[str, Any]:
        """Counts and states of every consumer that is pushed, by its name."""
        return {f"{p.spec.stream}:{p.spec.name}": p.statistics() for p in self._pipelines()}

    def tells(self) -> dict[str, Any]:
        """For the app's statistics: these consumers are at work as its own are."""
        return {"consumers": self.statistics()}

    def _pipelines(self) -> list[Pipeline]:
        return [running.pipeline for running in list(self._running.values())]


def _agent() -> str:
    """What we call ourselves to those that we push to."""
    try:
        return f"headrace/{version('headrace')}"
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "headrace"


def _handler(sender: Sender, push: Push) -> Handler:
    handler = Handler(sender.one if push.batch is None else sender.many, batch=push.batch is not None)
    handler.decode = _as_it_is
    return handler


def _as_it_is(payload: str) -> str:
    """Payloads are sent as they are stored, so there is nothing to decode, and nothing that doesn't fit."""
    return payload


def _handling(push: Push) -> Handling:
    return Handling(
        concurrency=push.concurrency, timeout=push.timeout + SPARE, batch=push.batch, runner="async", breaker=BREAKER
    )
