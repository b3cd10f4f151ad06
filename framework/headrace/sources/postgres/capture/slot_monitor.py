"""The slot monitor observes a source's replication slot, beside the capturer. Every few seconds it stores the
slot's state, and it raises an alarm before a disk is full or the slot is lost.

It has its own connection to the captured server, so it also reports while the capturer is busy. Its errors are only
logged, and the capture continues.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

import anyio
import msgspec

from headrace import store
from headrace.model.capture import CaptureFacts
from headrace.model.clock import Clock
from headrace.model.errors import HeadraceError
from headrace.model.log import Log
from headrace.sources.postgres.capture.alarms import Alarm, alarm_of
from headrace.sources.postgres.database import slots
from headrace.sources.postgres.held_capture import HeldCapture
from headrace.sources.postgres.spec import PostgresSpec

if TYPE_CHECKING:
    from headrace.sources.postgres.connection.source_connection import SourceConnection

log = Log("headrace")

INTERVAL = 5.0
"""Seconds between two checks of the slot."""

ANSWER_TIMEOUT = 10.0
"""Timeout in seconds for an answer of the server, connecting included."""

CLOSE_TIMEOUT = 2.0
"""Timeout in seconds for closing the connection."""

HEARTBEAT = "select pg_logical_emit_message(true, 'headrace.heartbeat', '')"
"""A transaction with a single WAL message, which no table contains and the capturer skips. Its commit
advances the slot.
"""

_FAILURES = (HeadraceError, OSError, TimeoutError)


class Observed(Protocol):
    """The capturer, as the slot monitor sees it."""

    @property
    def progress(self) -> tuple[int, int, datetime | None]:
        """The WAL location up to which everything is in the stream, the total number of changes, and the commit
        time of the newest transaction."""

    @property
    def problem(self) -> tuple[str | None, str | None]:
        """A problem that does not stop the capture, and the statement that corrects it."""

    @property
    def lowest(self) -> tuple[str, int] | None:
        """The source of a shared slot with the smallest stored position, and that position. None for a slot of its
        own."""

    async def connect(self) -> SourceConnection:
        """Make a connection to the captured server."""


class SlotMonitor:
    """Observes the slot of one capturer.

    Args:
        capture: the source's capture.
        spec: the source's settings, of which `alarm` and `heartbeat` matter here.
        slot: the slot's name.
        observed: the capturer.
        clock: seconds, monotonic.
        interval: seconds between two checks.
        answer_timeout: timeout in seconds for an answer of the server, connecting included.
    """

    def __init__(
        self,
        capture: HeldCapture,
        spec: PostgresSpec,
        slot: str,
        observed: Observed,
        clock: Clock = time.monotonic,
        interval: float = INTERVAL,
        answer_timeout: float = ANSWER_TIMEOUT,
    ) -> None:
        self._database = capture.database
        self._number = capture.number
        self._epoch = capture.epoch
        self._spec = spec
        self._slot = slot
        self._observed = observed
        self._clock = clock
        self._interval = interval
        self._answer_timeout = answer_timeout
        self._connection: SourceConnection | None = None
        self._alarm: Alarm | None = None
        self._failing_actions: set[str] = set()
        self._change_rate = _ChangeRate()
        self._idle_timer = _IdleTimer(clock())
        self.heartbeats = 0
        """Number of heartbeats sent."""
        self.facts = CaptureFacts()
        """The facts stored last."""

    async def run(self) -> None:
        """Observe until cancelled, or until another process captures. Errors are logged, not raised."""
        interval = self._interval if self._spec.heartbeat is None else min(self._interval, self._spec.heartbeat)
        try:
            while True:
                if not await self.check():
                    return
                await anyio.sleep(interval)
        finally:
            await self._close()

    async def check(self) -> bool:
        """Query the server once, and store the result. Returns whether the capture lease is still valid."""
        position, total, committed_at = self._observed.progress
        now = self._clock()
        facts = await self._query_slot(position)
        if facts is not None:
            self._update_alarm(facts, position)
            if self._spec.heartbeat is not None and self._idle_timer.due(now, (position, total), self._spec.heartbeat):
                await self._send_heartbeat(facts)
        self.facts = msgspec.structs.replace(
            facts or CaptureFacts(),
            rate=self._change_rate.of(now, total),
            committed_at=committed_at,
            alarm=None if self._alarm is None else self._alarm.text,
        )
        return await self._store(self.facts)

    async def _query_slot(self, position: int) -> CaptureFacts | None:
        """Return the slot's state, or None if the server does not answer."""
        try:
            with anyio.fail_after(self._answer_timeout):
                if self._connection is None:
                    self._connection = await self._observed.connect()
                facts = await slots.slot_facts(self._connection, self._slot, position)
        except _FAILURES as error:
            await self._close()
            self._log_failure("slot check", error)
            return None
        self._log_recovery("slot check")
        return facts

    def _update_alarm(self, facts: CaptureFacts, position: int) -> None:
        """Begin or end an alarm, and log that once."""
        previous, holder = self._alarm, self._observed.lowest
        if holder is not None and holder[1] < position and facts.behind is not None:
            facts = msgspec.structs.replace(facts, behind=facts.behind + position - holder[1])
        held_by, current = None if holder is None else holder[0], None if previous is None else previous.kind
        source, limit = self._spec.name, self._spec.alarm
        self._alarm = alarm_of(facts, source=source, slot=self._slot, limit=limit, held_by=held_by, current=current)
        if self._alarm is not None and (previous is None or previous.kind != self._alarm.kind):
            log.warning(
                "slot alarm", source=self._spec.name, slot=self._slot, alarm=self._alarm.kind, error=self._alarm.text
            )
        elif self._alarm is None and previous is not None:
            log.info("slot alarm cleared", source=self._spec.name, slot=self._slot)

    async def _send_heartbeat(self, facts: CaptureFacts) -> None:
        """Write a heartbeat, unless the capture is not behind, so that the slot has nothing to advance over."""
        if facts.behind == 0 or self._connection is None:
            return
        try:
            with anyio.fail_after(self._answer_timeout):
                await self._connection.query(HEARTBEAT)
        except _FAILURES as error:
            await self._close()
            self._log_failure("heartbeat", error)
            return
        self.heartbeats += 1
        self._log_recovery("heartbeat")

    async def _store(self, facts: CaptureFacts) -> bool:
        try:
            return await store.report_capture(
                self._database, self._number, self._epoch, "running", *self._observed.problem, facts=facts
            )
        except HeadraceError:  # the capturer has the same problem, and reports it
            return True

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            try:
                await connection.close()
            except _FAILURES as error:
                log.debug("connection not closed", source=self._spec.name, error=error)

    # --- logging once

    def _log_failure(self, action: str, error: Exception) -> None:
        if action not in self._failing_actions:
            self._failing_actions.add(action)
            text = str(error) or f"no answer within {self._answer_timeout:g} s"  # public: logged
            log.warning(f"{action} failed", source=self._spec.name, error=text, hint="the capture continues")

    def _log_recovery(self, action: str) -> None:
        if action in self._failing_actions:
            self._failing_actions.remove(action)
            log.info(f"{action} succeeded again", source=self._spec.name)


class _ChangeRate:
    """Measures the growth of a count from one look to the next."""

    def __init__(self) -> None:
        self._before: tuple[float, int] | None = None

    def of(self, now: float, count: int) -> float:
        """Return the growth per second since the previous look. It is 0 at the first look."""
        before, self._before = self._before, (now, count)
        if before is None or now <= before[0]:
            return 0.0
        return max(0, count - before[1]) / (now - before[0])


class _IdleTimer:
    """Measures how long nothing has changed."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._value: tuple[int, int] | None = None

    def due(self, now: float, value: tuple[int, int], duration: float) -> bool:
        """Return whether the value has been the same for `duration` seconds. If so, the time starts again."""
        if value != self._value:
            self._value, self._since = value, now
            return False
        if now - self._since < duration:
            return False
        self._since = now
        return True
