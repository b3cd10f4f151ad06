"""A connection of the pool: it counts its round trips, and begins a transaction together with the settings for it."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import asyncpg
from asyncpg.transaction import Transaction

ENDING = 10.0
"""Seconds that the end of a long transaction may take; then its connection is given up."""


if TYPE_CHECKING:
    Plain = asyncpg.Connection[asyncpg.Record]
else:
    Plain = asyncpg.Connection


class Meter:
    """What the connections of one pool did so far.

    Attributes:
        round_trips: statements that were sent, BEGIN and COMMIT among them.
        waits: how often somebody had to wait for a connection, or for his turn to hold one ...
        waited: ... and for how many seconds together.
    """

    __slots__ = ("round_trips", "waited", "waits")

    def __init__(self) -> None:
        self.round_trips = 0
        self.waits = 0
        self.waited = 0.0


class Connection(Plain):
    """As asyncpg has it, but for what this module is for."""

    meter = Meter()  # each pool has one of its own
    _along = ""

    def set_along(self, query: str) -> None:
        """Send this SQL along with the next statement that has no arguments: a round trip less."""
        self._along = query

    def execute(self, query: str, *args: Any, timeout: float | None = None) -> Awaitable[str]:  # type: ignore[override]
        self.meter.round_trips += 1
        along, self._along = self._along, ""
        return super().execute(query + along if along else query, *args, timeout=timeout)

    def executemany(self, *args: Any, **options: Any) -> Awaitable[None]:  # type: ignore[override]
        self.meter.round_trips += 1
        return super().executemany(*args, **options)

    def fetch(self, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        self.meter.round_trips += 1
        return super().fetch(*args, **options)

    def fetchrow(self, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        self.meter.round_trips += 1
        return super().fetchrow(*args, **options)

    def fetchval(self, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        self.meter.round_trips += 1
        return super().fetchval(*args, **options)


class Hold:
    """A connection of a pool, held for as long as somebody else's transaction takes. `Database.begin` makes it.

    It is asyncpg that begins the transaction, so that its savepoints and cursors work inside.
    """

    __slots__ = ("_open", "_pool", "connection")

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], connection: Any) -> None:
        self._pool = pool
        self._open: Transaction | None = None
        self.connection = connection

    async def begin(self, idle: float) -> None:
        """Begin the transaction. The server ends it when nothing is asked of it for `idle` seconds."""
        self._open = transaction = self.connection.transaction()
        self.connection.set_along(f"set local idle_in_transaction_session_timeout = {idle * 1000:.0f}")
        await transaction.start()

    async def commit(self) -> None:
        """Commit it. An error that is none of the server's leaves open whether it is committed."""
        assert self._open is not None
        transaction, self._open = self._open, None
        await transaction.commit()

    def break_off(self) -> None:
        """Close the connection at once; the server takes back what is open on it."""
        self._open = None
        with suppress(asyncpg.InterfaceError):  # it is closed already, and has left its pool
            self.connection.terminate()

    async def end(self) -> None:
        """Take back what is not committed, and give the connection back to its pool."""
        try:
            if self._open is not None:
                transaction, self._open = self._open, None
                with anyio.fail_after(ENDING, shield=True):
                    await transaction.rollback()
        except Exception:  # the connection is of no use any more, and what was open on it ends with it
            self.break_off()
        finally:
            await self._pool.release(self.connection)
