"""The roster: a process tells of itself every few seconds while it runs, so that `headrace observe` sees who is at work, and at what.

It is one small statement, and nobody waits for it: while the database is away nothing is told.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal
from uuid import uuid4

import anyio

from headrace import store
from headrace.model.errors import StoreUnavailable
from headrace.model.records import ConsumerAtWork, ServerAtWork, WorkerFacts
from headrace.runtime.wiring import SYSTEM_TIME, Time

logger = logging.getLogger("headrace")

EVERY = 3.0
"""Seconds from one telling to the next."""

MOST_CONSUMERS = 100
"""Consumers that a process tells of."""

LONGEST_REASON = 120

GOODBYE = 2.0
"""Seconds that the last word may take."""

REPAIR = 60.0
"""Seconds of silence after the database refused what was told."""

Kind = Literal["run", "serve", "embedded"]

_kind: Kind = "embedded"


def this_process_is(kind: Kind) -> None:
    """What the whole process is there for, told by the command that runs it. Nothing else is known to be one's own process."""
    global _kind
    _kind = kind


class Roster:
    """Tells of one process, or rather of one app at work in it.

    Args:
        database: an open one.
        statistics: as `App.statistics` has them, or of some consumers and the number of the others, `more_consumers`.
        time: the clocks.
    """

    def __init__(
        self, database: store.Database, statistics: Callable[[], Mapping[str, Any]], time: Time = SYSTEM_TIME
    ) -> None:
        self._database = database
        self._statistics = statistics
        self._clock = time.clock
        self._id = uuid4()
        self._started_at = datetime.now(UTC)
        self._pace = Pace()

    async def run(self) -> None:
        """Tell until cancelled, and then say goodbye. No failure of it is worth stopping the app."""
        try:
            while True:
                silence = await self._tell()
                await anyio.sleep(silence)
        finally:
            await self._leave()

    async def tell(self) -> None:
        """Tell once. Raises `StoreUnavailable`."""
        await store.tell_worker(self._database, self._id, self.facts())

    async def _tell(self) -> float:
        """Returns how long to be silent."""
        try:
            await self.tell()
        except StoreUnavailable:
            return EVERY
        except Exception:  # such as a privilege that is missing
            logger.exception("This process can't tell others of itself; it tries again in %g s", REPAIR)
            return REPAIR
        return EVERY

    async def _leave(self) -> None:
        """A row that stays behind is found gone after a while, so it may well fail."""
        with anyio.move_on_after(GOODBYE, shield=True):
            try:
                await store.worker_left(self._database, self._id)
            except Exception as failure:
                logger.debug("This process could not say goodbye: %s", failure)

    def facts(self) -> WorkerFacts:
        """What there is to tell now."""
        found, now = self._statistics(), self._clock()
        consumers = found.get("consumers", {})
        told = list(consumers.items())[:MOST_CONSUMERS]
        server = found.get("server")
        return WorkerFacts(
            host=socket.gethostname(),
            pid=os.getpid(),
            kind=_kind,
            version=_version(),
            started_at=self._started_at,
            connections=found.get("connections", {}).get("open", 0),
            consumers=[_consumer(name, counts, self._pace, now) for name, counts in told],
            more_consumers=len(consumers) - len(told) + found.get("more_consumers", 0),
            server=None if server is None else _server(server, self._pace, now),
        )


class Pace:
    """How quickly counts grow, from one look to the next."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def of(self, name: str, count: float, now: float) -> float | None:
        """So many a second since it was looked at before; None at the first look, and when the count began anew."""
        then = self._before.get(name)
        self._before[name] = (now, count)
        if then is None or now <= then[0] or count < then[1]:
            return None
        return (count - then[1]) / (now - then[0])


def _consumer(full_name: str, counts: Mapping[str, Any], pace: Pace, now: float) -> ConsumerAtWork:
    stream, name = full_name.rsplit(":", 1)
    latest = counts["decisions"][-1] if counts.get("decisions") else {}
    breaker = counts.get("breaker")
    return ConsumerAtWork(
        stream=stream,
        name=name,
        actors=counts.get("actors", 0),
        busy=counts.get("busy", 0),
        reason=str(counts.get("reason", ""))[:LONGEST_REASON],
        rate=pace.of(full_name, counts.get("acked", 0) + counts.get("failed", 0), now),
        latency=latest.get("latency"),
        leased=counts.get("held", 0),
        waiting=counts.get("waiting", 0),
        acked=counts.get("acked", 0),
        failed=counts.get("failed", 0),
        breaker=None if breaker is None else breaker["state"],
    )


def _server(counts: Mapping[str, Any], pace: Pace, now: float) -> ServerAtWork:
    requests = counts.get("requests")
    return ServerAtWork(
        requests=None if requests is None else pace.of("", requests, now),
        in_flight=counts.get("in_flight", 0),
        waiting=counts.get("waiting", 0),
    )


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"
