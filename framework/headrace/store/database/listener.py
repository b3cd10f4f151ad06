"""A connection that listens for notifications of publishers. Optional, because a poll finds messages too. See
`sql/functions/leasing/notifications.sql`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from headrace.store.database.database import Database
from headrace.store.database.errors import translated

CHANNEL = "headrace"

HEARTBEAT = 2.0
"""The interval of a heartbeat query in seconds. A connection that only listens can't distinguish a dead server
from one without news. The failure detector watches a connection that waits for an answer.
"""


async def listen(database: Database, notify: Callable[[int], None], ready: Callable[[], None]) -> None:
    """Call `notify` with the id of each stream that has new messages, until cancelled. Calls `ready` when it
    has started to listen.

    Raises:
        StoreUnavailable: the connection broke.

    Listening is impossible behind a transaction pooler. There this call only waits until it is cancelled.
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
