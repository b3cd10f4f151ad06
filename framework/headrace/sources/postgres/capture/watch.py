"""Beside a capturer: how its replication slot is, told to the database every few seconds, and alarmed before a disk is full or a slot lost.

It has a connection of its own to the captured server, so that it also tells while the capturer is busy. What goes wrong here is weather: the
capture goes on without it.
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
from headrace.sources.postgres.server import slots
from headrace.sources.postgres.spec import PostgresSpec

if TYPE_CHECKING:
    from headrace.sources.postgres.connection.link import Link

logger = logging.getLogger("headrace")

EVERY = 5.0
"""Seconds between looks."""

PATIENCE = 10.0
"""Seconds that the server has to answer, connecting included."""

GOODBYE = 2.0
"""Seconds that closing the connection may take."""

HEARTBEAT = "select pg_logical_emit_message(true, 'headrace.heartbeat', '')"
"""A transaction of nothing but a message, which no table sees and the capturer passes over: its commit moves the slot on."""

Captured = Callable[[], tuple[int, int, datetime | None]]
"""How far the capturer is: the WAL location up to which everything is in the stream, how many changes that were since ever, and when the
newest of their transactions was committed."""

_FAILURES = (HeadraceError, OSError, TimeoutError)


class Watch:
    """Watches the slot of one capturer.

    Args:
        database: where it is told.
        number: the source's, in that database.
        epoch: of the tenure under which it is told.
        spec: the source's settings: `alarm` and `heartbeat` are heeded.
        slot: the slot's name.
        connect: makes a connection to the captured server.
        captured: how far the capturer is.
        clock: seconds, monotonic.
        note: what is wrong though the capture goes on, and what mends it, to be told with the rest.
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
        """How many it has sent."""
        self.facts = CaptureFacts()
        """What it has told last."""

    async def run(self) -> None:
        """Watch until cancelled, or until somebody else captures. Nothing that goes wrong here is raised."""
        every = EVERY if self._spec.heartbeat is None else min(EVERY, self._spec.heartbeat)
        try:
            while True:
                if not await self.look():
                    return
                await anyio.sleep(every)
        finally:
            await self._hang_up()

    async def look(self) -> bool:
        """Ask the server once, and tell. Returns whether the tenure is still the one that counts."""
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
        """How the slot is; None if nobody says."""
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
        """Begin an alarm, or end it, and say so once."""
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
        """Write something, unless there is nothing that the slot could move on over."""
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
        except HeadraceError:  # the capturer has the same trouble, and says so
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

    # --- saying so once

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
    """How quickly a count grows, from one look to the next."""

    def __init__(self) -> None:
        self._then: tuple[float, int] | None = None

    def of(self, now: float, count: int) -> float:
        """So many a second since the look before; 0 at the first one."""
        then, self._then = self._then, (now, count)
        if then is None or now <= then[0]:
            return 0.0
        return max(0, count - then[1]) / (now - then[0])


class _Still:
    """For how long nothing has moved."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._at: tuple[int, int] | None = None

    def due(self, now: float, at: tuple[int, int], patience: float) -> bool:
        """Whether it has been at the same place for so many seconds; then those are counted anew."""
        if at != self._at:
            self._at, self._since = at, now
            return False
        if now - self._since < patience:
            return False
        self._since = now
        return True
