"""A session that hears what the processes of Headrace hear."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import asyncpg

from headrace.store.database.listener import channels


async def listen(
    connection: asyncpg.Connection[Any], heard: Callable[..., object], streams: Iterable[int] | None = None
) -> None:
    """Call `heard` with the connection, the sender's process, the channel and the id of the stream that has news."""
    for channel in channels(streams):
        await connection.add_listener(channel, heard)
