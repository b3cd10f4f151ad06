"""Waking up: a connection that listens for publishers. Optional, since a poll stands behind it; see `sql/functions/wake.sql`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from headrace.store.database import Database
from headrace.store.translate import translated

CHANNEL = "headrace"


async def listen(database: Database, notify: Callable[[int], None], ready: Callable[[], None]) -> None:
    """Call `notify` with the id of each stream that has news, until cancelled; `ready` when it begins to hear.

    Raises:
        StoreUnavailable: the connection broke.

    Behind a transaction pooler nothing can listen; then this waits, and does nothing, until cancelled.
    """
    if database.pooled:
        await anyio.sleep_forever()
    closed = anyio.Event()

    def hear(_connection: Any, _pid: int, _channel: str, payload: Any) -> None:
        notify(int(payload))

    def end(_connection: Any) -> None:
        closed.set()

    with translated(database.dsn):
        connection = await database.connect()
        try:
            connection.add_termination_listener(end)
            await connection.add_listener(CHANNEL, hear)
            ready()
            await closed.wait()
            raise ConnectionResetError("the listening connection was closed")
        finally:
            connection.terminate()
