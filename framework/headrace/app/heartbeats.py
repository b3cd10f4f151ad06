"""The heartbeat: a running process reports its state every few seconds, for `headrace observe`.

It is one small statement, and nothing waits for it. While the database can't be reached, nothing is
reported.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal
from uuid import uuid4

import anyio
import msgspec

from headrace import store
from headrace.model.clock import SYSTEM_TIME, Time
from headrace.model.errors import SchemaError, StoreUnavailable
from headrace.model.log import Log
from headrace.model.records import ConsumerAtWork, Percentiles, ServerAtWork, WorkerFacts

log = Log("headrace")

INTERVAL = 3.0
"""Seconds between two heartbeats."""

MAX_CONSUMERS = 100
"""Maximum number of consumers that a heartbeat reports."""

MAX_REASON_LENGTH = 120
"""Largest number of characters of a reason. A heartbeat with as many consumers as it may have stays below 128 KiB."""

MAX_BLOCKED_LENGTH = 400

LEAVE_TIMEOUT = 2.0
"""Timeout, in seconds, of the statement that removes the process at its end."""

ERROR_INTERVAL = 60.0
"""Seconds until the next heartbeat after the database refused one."""

Kind = Literal["run", "serve", "embedded"]

_kind: Kind = "embedded"


def set_process_kind(kind: Kind) -> None:
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
        self._rate = Rate()

    async def run(self) -> None:
        """Send heartbeats until cancelled, then remove the process's row. No failure stops the app."""
        try:
            while True:
                delay = await self._send_or_wait()
                await anyio.sleep(delay)
        finally:
            await self._remove()

    async def announce(self) -> None:
        """Send the first heartbeat, and then check that the schema still serves this process.

        In this order, because a feature that older processes can't bear is switched on when no heartbeat of
        one is left.

        Raises:
            SchemaError: it does not. The process's row is removed.
        """
        await self._send_or_wait()
        try:
            await store.require_current_schema(self._database)
        except SchemaError:
            await self._remove()
            raise

    async def send(self) -> None:
        """Send one heartbeat. Raises `StoreUnavailable`."""
        await store.record_heartbeat(self._database, self._id, self.facts())

    async def send_blocked(self, database: store.Database, blocked: str) -> None:
        """Send one heartbeat over another connection, in another thread, while the event loop is blocked.

        Args:
            blocked: what blocks it.
        """
        facts = msgspec.structs.replace(self.facts(), blocked=blocked[:MAX_BLOCKED_LENGTH])
        await store.record_heartbeat(database, self._id, facts)

    async def _send_or_wait(self) -> float:
        """Send one heartbeat. Returns the seconds to wait for the next one."""
        try:
            await self.send()
        except StoreUnavailable:
            return INTERVAL
        except Exception as error:  # such as a missing privilege
            log.error("heartbeat failed", error=error, seconds=ERROR_INTERVAL, exc_info=error)
            return ERROR_INTERVAL
        return INTERVAL

    async def _remove(self) -> None:
        """Remove the row. It may fail, since a row that remains is treated as gone after a while."""
        with anyio.move_on_after(LEAVE_TIMEOUT, shield=True):
            try:
                await store.delete_heartbeat(self._database, self._id)
            except Exception as error:
                log.debug("heartbeat not removed", error=error)

    def facts(self) -> WorkerFacts:
        """The contents of a heartbeat now."""
        found, now = self._statistics(), self._clock()
        consumers = found.get("consumers", {})
        reported = list(consumers.items())[:MAX_CONSUMERS]
        server = found.get("server")
        return WorkerFacts(
            host=socket.gethostname(),
            pid=os.getpid(),
            kind=_kind,
            version=process_version(),
            started_at=self._started_at,
            revision=store.newest_revision(),
            connections=found.get("connections", {}).get("open", 0),
            consumers=[_consumer(name, counts, self._rate, now) for name, counts in reported],
            more_consumers=len(consumers) - len(reported) + found.get("more_consumers", 0),
            server=None if server is None else _server(server, self._rate, now),
        )


class Rate:
    """The rate at which counts grow between two calls."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def of(self, name: str, count: float, now: float) -> float | None:
        """Growth per second since the previous call. None at the first call, and after the count was reset."""
        previous = self._before.get(name)
        self._before[name] = (now, count)
        if previous is None or now <= previous[0] or count < previous[1]:
            return None
        return (count - previous[1]) / (now - previous[0])


def _consumer(full_name: str, counts: Mapping[str, Any], rate: Rate, now: float) -> ConsumerAtWork:
    stream, name = full_name.rsplit(":", 1)
    latest = counts["decisions"][-1] if counts.get("decisions") else {}
    breaker = counts.get("breaker") or {}
    why = breaker.get("reason")
    return ConsumerAtWork(
        stream=stream,
        name=name,
        actors=counts.get("actors", 0),
        busy=counts.get("busy", 0),
        reason=str(counts.get("reason", ""))[:MAX_REASON_LENGTH],
        rate=rate.of(full_name, counts.get("acked", 0) + counts.get("failed", 0), now),
        latency=latest.get("latency"),
        leased=counts.get("held", 0),
        waiting=counts.get("waiting", 0),
        acked=counts.get("acked", 0),
        failed=counts.get("failed", 0),
        durations=None if counts.get("durations") is None else Percentiles(**counts["durations"]),
        breaker=breaker.get("state"),
        breaker_left=breaker["probe_in"] if breaker.get("state") == "open" else None,
        breaker_reason=None if why is None else why.strip().split("\n")[0][:MAX_REASON_LENGTH],
        breaker_failures=breaker.get("failures", 0),
        owner=counts.get("owner"),
    )


def _server(counts: Mapping[str, Any], rate: Rate, now: float) -> ServerAtWork:
    requests = counts.get("requests")
    return ServerAtWork(
        requests=None if requests is None else rate.of("", requests, now),
        in_flight=counts.get("in_flight", 0),
        waiting=counts.get("waiting", 0),
    )


@cache
def process_version() -> str:
    """The version that runs, even if another one has been installed since."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"
