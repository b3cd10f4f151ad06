"""A connection that listens for notifications of publishers. Optional, because a poll finds messages too. See
`sql/functions/leasing/notifications.sql`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio

from headrace.store.database.database import Database
from headrace.store.database.errors import translated

CHANNELS = 64
"""How many channels the streams of a database share, as `headrace_internal.send_notification` has it. A process with few
streams is rarely woken by others, and one that follows all of them listens to no more. Up to PostgreSQL 18, a backend
compares each notification with all of its channels.
"""

HEARTBEAT = 2.0
"""The interval of a heartbeat query in seconds. A connection that only listens can't distinguish a dead server
from one without news. The failure detector watches a connection that waits for an answer.
"""


def channels(streams: Iterable[int] | None = None) -> list[str]:
    """Return the channels of notifications about streams, which are given by their ids. None stands for all streams."""
    ids = range(CHANNELS) if streams is None else streams
    return [f"headrace_{number}" for number in sorted({stream % CHANNELS for stream in ids})]


async def listen(
    database: Database,
    notify: Callable[[int], None],
    ready: Callable[[], None],
    streams: Iterable[int] | None = None,
) -> None:
    """Call `notify` with the id of each stream that has new messages, until cancelled. Calls `ready` when it
    has started to listen.

    Args:
        streams: the ids of the streams to listen to. `notify` may get others, too. None listens to all of them.

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
            for channel in channels(streams):
                await connection.add_listener(channel, hear)
            ready()
            while not closed.is_set():
                with anyio.move_on_after(HEARTBEAT):
                    await closed.wait()
                    break
                await connection.execute("select")
            raise ConnectionResetError("the listening connection was closed")
        finally:
            connection.terminate()
