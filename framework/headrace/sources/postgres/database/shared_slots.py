"""Replication slots that several sources share: where a new source starts, and copies to catch up with."""

from __future__ import annotations

import time
from uuid import uuid4

import anyio

from headrace.sources.postgres.connection.source_connection import SourceConnection
from headrace.sources.postgres.database import slots
from headrace.sources.postgres.errors import SourceUnavailable
from headrace.sources.postgres.pgoutput import positions


def copy_name(slot: str) -> str:
    """Return a new name for a temporary copy of a shared slot."""
    return f"{slot[: slots.MAX_NAME_BYTES - 9]}_{uuid4().hex[:8]}"


async def position_for_publication(connection: SourceConnection, timeout: float = slots.CREATE_TIMEOUT) -> int:
    """Return a position from which a new source of a shared slot can start.

    The server decodes a change with the publications that existed when the change was made. The transactions that are
    open now may have begun before the source's publication existed. This waits for them, as the creation of a slot
    does.

    Raises:
        SourceUnavailable: they are open for too long.
    """
    end = "select pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text"
    ((open_before,),) = await connection.query(end)
    deadline = time.monotonic() + timeout
    while await connection.query(
        "select where pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()) < $1::xid8", open_before
    ):
        if time.monotonic() > deadline:
            raise SourceUnavailable(
                f"The source can't start yet. It waits for transactions that were open before. {await slots.oldest_open_transaction(connection)}."
            )
        await anyio.sleep(0.05)
    # The commit of this message comes after its position, so the slot is sure to reach it.
    ((position,),) = await connection.query("select pg_catalog.pg_logical_emit_message(true, 'headrace.heartbeat', '')")
    return positions.parse(position or "0/0")


async def free_slot(connection: SourceConnection, name: str, application_name: str) -> None:
    """Terminate the connection with this application name that uses the slot, if there is one. Raises `SourceStopped`
    if another client uses it.
    """
    slot = await slots.find_slot(connection, name)
    if slot is not None and slot.pid is not None:
        await slots.terminate_own_reader(connection, name, slot, application_name)
