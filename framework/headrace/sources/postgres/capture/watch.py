"""The watch monitors a source's replication slot, beside the capturer. Every few seconds it stores the
slot's state, and it raises an alarm before a disk is full or the slot is lost.

It has its own connection to the captured server, so it also reports while the capturer is busy. Its
errors are only logged, and the capture goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING

import anyio
import msgspec

from headrace import store
from headrace.model.capture import CaptureFacts
from headrace.model.errors import HeadraceError
from headrace.sources.postgres.capture.alarms import Alarm, alarm_of
from headrace.sources.postgres.database import slots
from headrace.sources.postgres.spec import PostgresSpec

if TYPE_CHECKING:
    from headrace.sources.postgres.connection.link import Link

logger = logging.getLogger("headrace")

EVERY = 5.0
"""Seconds between two looks."""

PATIENCE = 10.0
"""Timeout in seconds for an answer of the server, connecting included."""

GOODBYE = 2.0
"""Timeout in seconds for closing the connection."""

HEARTBEAT = "select pg_logical_emit_message(true, 'headrace.heartbeat', '')"
"""A transaction with a single WAL message, which no table contains and the capturer skips. Its commit
advances the slot.
"""

Captured = Callable[[], tuple[int, int, datetime | None]]
"""Returns the capturer's progress: the WAL location up to which everything is in the stream, the total
number of changes, and the commit time of the newest transaction.
"""

_FAILURES = (HeadraceError, OSError, TimeoutError)


class Watch:
    """Watches the slot of one capturer.

    Args:
        database: where the state is stored.
        number: the source's number in that database.
        epoch: the capture lease's epoch.
        spec: the source's settings, of which `alarm` and `heartbeat` matter here.
        slot: the slot's name.
        connect: makes a connection to the captured server.
        captured: returns the capturer's progress.
        clock: seconds, monotonic.
        note: returns a problem that does not stop the capture, and what corrects it. It is stored
            with the state.
    """

    def __init__(
        self, database: store.Database, number: int, epoch: int, spec: PostgresSpec, slot: str,
        connect: Callable[[], Awaitable[Link]], captured: Captured, clock: Callable[[], float] = time.monotonic,
        note: Callable[[], tuple[str | None, str | None]] = lambda: (None, None),
    ) -> None:  # fmt: skip
        self._database = database
        self._number = number
        self._epoch = epoch
        self._spec = spec
        self._slot = slot
        self._connect = connect
        self._captured = captured
        self._clock = clock
        self._note = note
        self._link: Link | None = None
        self._alarm: Alarm | None = None
        self._failing: set[str] = set()
        self._pace = _Pace()
        self._still = _Still(clock())
        self.heartbeats = 0
        """Number of heartbeats sent."""
        self.facts = CaptureFacts()
        """The facts stored last."""

    async def run(self) -> None:
        """Watch until cancelled, or until another process captures. Errors are logged, not raised."""
        every = EVERY if self._spec.heartbeat is None else min(EVERY, self._spec.heartbeat)
        try:
            while True:
                if not await self.look():
                    return
                await anyio.sleep(every)
        finally:
            await self._hang_up()

    async def look(self) -> bool:
        """Query the server once, and store the result. Returns whether the capture lease is still valid."""
        position, total, committed_at = self._captured()
        now = self._clock()
        asked = await self._ask(position)
        if asked is not None:
            self._judge(asked)
            if self._spec.heartbeat is not None and self._still.due(now, (position, total), self._spec.heartbeat):
                await self._beat(asked)
        self.facts = msgspec.structs.replace(
            asked or CaptureFacts(),
            rate=self._pace.of(now, total),
            committed_at=committed_at,
            alarm=None if self._alarm is None else self._alarm.text,
        )
        return await self._tell(self.facts)

    async def _ask(self, position: int) -> CaptureFacts | None:
        """Return the slot's state, or None if the server does not answer."""
        try:
            with anyio.fail_after(PATIENCE):
                if self._link is None:
                    self._link = await self._connect()
                facts = await slots.slot_facts(self._link, self._slot, position)
        except _FAILURES as error:
            await self._hang_up()
            self._failed("asked how its replication slot is", error)
            return None
        self._went_well("asked how its replication slot is")
        return facts

    def _judge(self, facts: CaptureFacts) -> None:
        """Begin or end an alarm, and log that once."""
        before = self._alarm
        self._alarm = alarm_of(
            facts, source=self._spec.name, slot=self._slot, limit=self._spec.alarm,
            begun=None if before is None else before.kind,
        )  # fmt: skip
        if self._alarm is not None and (before is None or before.kind != self._alarm.kind):
            logger.warning("Source %s: %s", self._spec.name, self._alarm.text)
        elif self._alarm is None and before is not None:
            logger.info("Source %s: its replication slot is well again", self._spec.name)

    async def _beat(self, facts: CaptureFacts) -> None:
        """Write a heartbeat, unless the capture is not behind, so that the slot has nothing to advance over."""
        if facts.behind == 0 or self._link is None:
            return
        try:
            with anyio.fail_after(PATIENCE):
                await self._link.query(HEARTBEAT)
        except _FAILURES as error:
            await self._hang_up()
            self._failed("sent a heartbeat", error)
            return
        self.heartbeats += 1
        self._went_well("sent a heartbeat")

    async def _tell(self, facts: CaptureFacts) -> bool:
        try:
            return await store.tell_capture(
                self._database, self._number, self._epoch, "running", *self._note(), facts=facts
            )
        except HeadraceError:  # the capturer has the same problem, and reports it
            return True

    async def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        with anyio.move_on_after(GOODBYE, shield=True):
            try:
                await link.close()
            except _FAILURES as error:
                logger.debug("Source %s: a connection did not close: %s", self._spec.name, error)

    # --- logging once

    def _failed(self, what: str, error: Exception) -> None:
        if what not in self._failing:
            self._failing.add(what)
            told = str(error) or f"there was no answer for {PATIENCE:g} s"
            logger.warning("Source %s can't be %s, and is captured all the same: %s", self._spec.name, what, told)

    def _went_well(self, what: str) -> None:
        if what in self._failing:
            self._failing.remove(what)
            logger.info("Source %s can be %s again", self._spec.name, what)


class _Pace:
    """Measures the growth of a count from one look to the next."""

    def __init__(self) -> None:
        self._then: tuple[float, int] | None = None

    def of(self, now: float, count: int) -> float:
        """Return the growth per second since the previous look. It is 0 at the first look."""
        then, self._then = self._then, (now, count)
        if then is None or now <= then[0]:
            return 0.0
        return max(0, count - then[1]) / (now - then[0])


class _Still:
    """Measures how long nothing has changed."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._at: tuple[int, int] | None = None

    def due(self, now: float, at: tuple[int, int], patience: float) -> bool:
        """Return whether the value has been the same for `patience` seconds. If so, the time starts again."""
        if at != self._at:
            self._at, self._since = at, now
            return False
        if now - self._since < patience:
            return False
        self._since = now
        return True
