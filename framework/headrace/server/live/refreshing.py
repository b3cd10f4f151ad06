"""Takes snapshots while somebody asks, one for all who ask."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

import anyio

from headrace import store
from headrace.admin.live.database import LiveDatabase
from headrace.admin.live.snapshot import Part, Snapshot
from headrace.admin.live.together import together
from headrace.model.errors import HeadraceError, public_text
from headrace.model.log import Log
from headrace.server.engine import Engine
from headrace.server.errors import unavailable
from headrace.server.live.pacing import KeptReads, Pace
from headrace.server.merging import read_all

log = Log("headrace")

INTERVAL = 1.0
"""The shortest time between two snapshots, in seconds."""

SHARE = 0.1
"""The largest share of the time in which snapshots are taken. One that takes longer is followed by a longer pause."""

MAX_INTERVAL = 30.0
"""The longest time between two snapshots, in seconds, however long one takes."""

TIMEOUT = 5.0
"""Seconds that a database has to answer. Then it counts as unreachable, and the last snapshot stays."""

KEPT = 60.0
"""Seconds for which a snapshot is good enough for a page that is being opened. To take one with thousands of consumers takes some
tenths of a second, and the page says of when it is."""

FACTS_EVERY = 10.0
"""Seconds between two readings of the version and the size of the server's own database."""


class LiveState:
    """The live state of all databases of a server.

    Nothing runs in the background: a request that finds the snapshot older than the interval takes another one, and the
    requests that come meanwhile wait for it. So it costs nothing while no request comes, and the same for many
    requests as for one.

    Args:
        engine: the engine of the server's own database.
        clock: monotonic time in seconds.

    Attributes:
        id: tells the snapshots of this process from those of others.
        error: why the own database could not be read. None while it can.
        facts: the version and the size of the own database. None at first.
        away: the further databases that did not answer.
        pace: the turns of what screens read beside the snapshot.
        kept: what screens read beside the snapshot, once for all.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._lock = anyio.Lock()
        self._snapshot: Snapshot | None = None
        self._number = 0
        self._due = self._kept_until = float("-inf")
        self._databases: dict[str | None, LiveDatabase] = {}
        self._began = clock()
        self.id = uuid4().hex[:8]
        self.error: str | None = None
        self.facts: store.ServerFacts | None = None
        self._facts_at = float("-inf")
        self.away: list[str] = []
        self.pace = Pace(clock)
        self.kept = KeptReads(Pace(clock), clock)  # polls leave these turns alone

    @property
    def uptime(self) -> float:
        """Seconds since the server was made."""
        return self._clock() - self._began

    @property
    def clock_offset(self) -> float | None:
        """Seconds by which the own database's clock is ahead of this process's. None at first."""
        return self._of(None).clock_offset

    def changed(self) -> None:
        """Read more with the next snapshot, since somebody changed something."""
        self.kept.forget()
        self._kept_until = float("-inf")
        for one in self._databases.values():
            one.changed()

    async def snapshot(self, *, first: bool = False) -> Snapshot:
        """Return a snapshot that is at most about a second old, or the last one while the database doesn't answer.

        Args:
            first: whether it is for a page that is being opened, which asks again at once. Then one of the last
                `KEPT` seconds is good enough, unless somebody has changed something since.

        Raises:
            StoreUnavailable: there is none yet.
        """
        if first and self._snapshot is not None and self._clock() < self._kept_until:
            return self._snapshot
        if self._clock() >= self._due or self._snapshot is None:
            async with self._lock:
                if self._clock() >= self._due or self._snapshot is None:
                    await self._take()
        if self._snapshot is None:
            raise unavailable(self.error or "The database does not answer.")
        return self._snapshot

    async def _take(self) -> None:
        began = self._clock()
        try:
            with anyio.fail_after(TIMEOUT):
                parts, self.away = await read_all(self._engine, self._read)
            await self._merge(parts)
            self.error = None
            self._kept_until = began + KEPT
        except (HeadraceError, TimeoutError) as error:
            late = isinstance(error, TimeoutError)
            self.error = f"The database did not answer within {TIMEOUT:g} s." if late else public_text(error)
            log.debug("live state not read", error=error)
            self._kept_until = float("-inf")
            if self._snapshot is not None:  # another state than before, so that clients learn of the outage
                self._number += 1
                self._snapshot.number = self._number
        took = self._clock() - began
        self._due = self._clock() + min(max(INTERVAL - took, took / SHARE), MAX_INTERVAL)

    async def _merge(self, parts: list[Part]) -> None:
        self._number += 1
        snapshot = Snapshot(self._number, parts[0].at)
        for part in parts:
            await snapshot.add(part)
        self._snapshot = snapshot
        for gone in self._databases.keys() - {part.database for part in parts} - set(self.away):
            del self._databases[gone]

    async def _read(self, engine: Engine) -> Part:
        if engine.names is None:
            parts: list[Part] = []

            async def read() -> None:
                parts.append(await self._of(None).read(engine.app.database))

            await together(read, self._read_facts)
            return parts[0]
        part = await self._of(engine.names.database).read(engine.app.database)
        part.database = engine.names.database
        part.reachable = await engine.names.reachable("stream", {one.name for one in part.reading.catalog_streams})
        return part

    async def _read_facts(self) -> None:
        if self._clock() >= self._facts_at + FACTS_EVERY:
            self.facts = await store.server_facts(self._engine.app.database)
            self._facts_at = self._clock()

    def _of(self, name: str | None) -> LiveDatabase:
        if name not in self._databases:
            self._databases[name] = LiveDatabase(lambda: self._clock())
        return self._databases[name]
