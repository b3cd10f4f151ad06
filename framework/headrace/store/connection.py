"""A connection of ours: it counts its round trips, has its waits watched, and begins a transaction together with the settings for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import asyncpg
from asyncpg.transaction import Transaction

from headrace.store.liveness import keep_alive

ENDING = 10.0
"""Seconds that the end of a long transaction may take; then its connection is given up."""


CANCELLING = 2.0
"""Seconds that the server has to take note that a statement is given up. It is told on another connection; when that one fails, too, this
one is closed, and the server notices by itself."""


if TYPE_CHECKING:
    from headrace.store.detector import FailureDetector

    Plain = asyncpg.Connection[asyncpg.Record]
else:
    Plain = asyncpg.Connection


def ending_when_idle(seconds: float) -> str:
    """SQL by which the server ends a transaction that it is asked nothing in for so long."""
    return f"set local idle_in_transaction_session_timeout = {seconds * 1000:.0f}"


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
    """As asyncpg has it, but for what this module is for.

    Attributes:
        opened_at: when it was connected, on the loop's clock.
    """

    meter = Meter()  # each pool has one of its own
    detector: FailureDetector | None = None
    opened_at = 0.0
    _along = ""
    _loop: asyncio.AbstractEventLoop
    _transport: asyncio.BaseTransport
    _addr: object

    def begin(self, meter: Meter, detector: FailureDetector) -> None:
        """It has just been connected."""
        self.meter, self.detector = meter, detector
        self.opened_at = self._loop.time()
        keep_alive(self.socket)

    @property
    def socket(self) -> Any:
        """Its socket, or None when it is closed."""
        return self._transport.get_extra_info("socket")

    @property
    def address(self) -> object:
        """Where it was made to: a host as the URL names it, and a port; or the path of a Unix socket."""
        return self._addr

    def set_along(self, query: str) -> None:
        """Send this SQL along with the next statement that has no arguments: a round trip less."""
        self._along = query

    def execute(self, query: str, *args: Any, timeout: float | None = None) -> Awaitable[str]:  # type: ignore[override]
        along, self._along = self._along, ""
        query = query + along if along else query
        return self._watched(query, super().execute(query, *args, timeout=timeout))

    def executemany(self, command: str, *args: Any, **options: Any) -> Awaitable[None]:  # type: ignore[override]
        return self._watched(command, super().executemany(command, *args, **options))

    def fetch(self, query: str, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        return self._watched(query, super().fetch(query, *args, **options))

    def fetchrow(self, query: str, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        return self._watched(query, super().fetchrow(query, *args, **options))

    def fetchval(self, query: str, *args: Any, **options: Any) -> Awaitable[Any]:  # type: ignore[override]
        return self._watched(query, super().fetchval(query, *args, **options))

    async def _watched(self, statement: str, answer: Awaitable[Any]) -> Any:
        self.meter.round_trips += 1
        detector = self.detector
        if detector is None:
            return await answer
        detector.asked(self, statement)
        well = False
        try:
            result = await answer
            well = True
            return result
        except asyncpg.InternalClientError as error:
            # The driver was reading the server's last words when it was asked for something new. It is no error of the caller's.
            self.terminate()
            raise asyncpg.InterfaceError("the connection broke in the middle of a statement") from error
        except AttributeError as error:
            if not self.is_closed():
                raise
            # A statement with types that are new to the driver takes several round trips, and it was closed between two of them.
            raise asyncpg.InterfaceError("the connection was closed in the middle of a statement") from error
        finally:
            detector.answered(self, well=well)

    async def _cancel(self, *waiters: Any) -> None:
        """As asyncpg has it, which waits for as long as a statement may take. Until then the pool lacks this connection."""
        try:
            async with asyncio.timeout(CANCELLING) as limit:
                await super()._cancel(*waiters)  # type: ignore[misc]
        except TimeoutError:
            pass
        if limit.expired() and not self.is_closed():
            self.terminate()


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
        self.connection.set_along(ending_when_idle(idle))
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
            await release(self._pool, self.connection)


async def release(pool: asyncpg.Pool[asyncpg.Record], connection: Any) -> None:
    """Give a connection back to its pool, within seconds also where the network is silent. Then it is closed."""
    with suppress(TimeoutError):
        await pool.release(connection, timeout=CANCELLING)
