"""The heartbeat: a running process reports its state every few seconds, for `headrace observe`.

It is one small statement, and nothing waits for it. While the database can't be reached, nothing is
reported.
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
from headrace.model.clock import SYSTEM_TIME, Time
from headrace.model.errors import StoreUnavailable
from headrace.model.records import ConsumerAtWork, ServerAtWork, WorkerFacts

logger = logging.getLogger("headrace")

EVERY = 3.0
"""Seconds between two heartbeats."""

MOST_CONSUMERS = 100
"""Maximum number of consumers that a heartbeat reports."""

LONGEST_REASON = 120

GOODBYE = 2.0
"""Timeout, in seconds, of the statement that removes the process at its end."""

REPAIR = 60.0
"""Seconds until the next heartbeat after the database refused one."""

Kind = Literal["run", "serve", "embedded"]

_kind: Kind = "embedded"


def this_process_is(kind: Kind) -> None:
    """Set the kind of the whole process. The command that runs it calls this. Other processes count as "embedded"."""
    global _kind
    _kind = kind


class Heartbeats:
    """Sends the heartbeats of one app in a process.

    Args:
        database: an open one.
        statistics: the same as `App.statistics`, or the statistics of some consumers and the number
            of the others, `more_consumers`.
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
        """Send heartbeats until cancelled, then remove the process's row. No failure stops the app."""
        try:
            while True:
                silence = await self._tell()
                await anyio.sleep(silence)
        finally:
            await self._leave()

    async def tell(self) -> None:
        """Send one heartbeat. Raises `StoreUnavailable`."""
        await store.tell_worker(self._database, self._id, self.facts())

    async def _tell(self) -> float:
        """Send one heartbeat. Returns the seconds to wait for the next one."""
        try:
            await self.tell()
        except StoreUnavailable:
            return EVERY
        except Exception:  # such as a missing privilege
            logger.exception("This process can't tell others of itself; it tries again in %g s", REPAIR)
            return REPAIR
        return EVERY

    async def _leave(self) -> None:
        """Remove the row. It may fail, since a row that remains is treated as gone after a while."""
        with anyio.move_on_after(GOODBYE, shield=True):
            try:
                await store.worker_left(self._database, self._id)
            except Exception as failure:
                logger.debug("This process could not say goodbye: %s", failure)

    def facts(self) -> WorkerFacts:
        """The contents of a heartbeat now."""
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
    """The rate at which counts grow between two calls."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def of(self, name: str, count: float, now: float) -> float | None:
        """Growth per second since the previous call. None at the first call, and after the count was reset."""
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
