"""Waking up: a connection that listens for publishers. Optional, since a poll stands behind it; see `sql/functions/wake.sql`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from headrace.store.database import Database
from headrace.store.translate import translated

CHANNEL = "headrace"

HEARTBEAT = 2.0
"""Seconds after which the server is asked for a sign of life. A connection that only listens can't tell silence from having no news; one
that waits for an answer is watched by the failure detector."""


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

    with translated(database.dsn, ours=True):
        connection = await database.connect()
        try:
            connection.add_termination_listener(end)
            await connection.add_listener(CHANNEL, hear)
            ready()
            while not closed.is_set():
                with anyio.move_on_after(HEARTBEAT):
                    await closed.wait()
                    break
                await connection.execute("select")
            raise ConnectionResetError("the listening connection was closed")
        finally:
            connection.terminate()
