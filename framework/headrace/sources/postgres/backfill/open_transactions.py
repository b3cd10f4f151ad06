"""Waits, before a process's first chunk, until all transactions that were captured earlier are
visible.

A committed transaction is in the WAL before it is visible to others. It may have been captured by a
process that has ended, so this process does not know of it. The delay is mostly short. But where
the server waits for a synchronous standby, it lasts as long as that takes.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from headrace.sources.postgres.backfill import chunks
from headrace.sources.postgres.backfill.visibility import Snapshot
from headrace.sources.postgres.connection.source_connection import SourceConnection

POLL_INTERVAL = 0.05
"""Seconds between two checks."""


async def wait_until_visible(connection: SourceConnection, clock: Callable[[], float], timeout: float) -> None:
    """Wait until each transaction that has its commit in the WAL now is visible. Raises
    `SourceUnavailable`.

    Open transactions that have not begun to commit may last for hours. After `timeout` seconds it therefore waits
    only for those that may be waiting for a standby.
    """
    await chunks.write_watermark(
        connection, "settling"
    )  # its transaction id is larger than all earlier ones, so the snapshot includes these
    invisible = (await _snapshot(connection)).running
    deadline = clock() + timeout
    while invisible and (clock() < deadline or await _may_wait_for_standby(connection, invisible)):
        await anyio.sleep(POLL_INTERVAL)
        invisible &= (await _snapshot(connection)).running


async def _snapshot(connection: SourceConnection) -> Snapshot:
    [(text,)] = await connection.query("select pg_current_snapshot()")
    assert text is not None
    return Snapshot.of(text)


async def _may_wait_for_standby(connection: SourceConnection, running: frozenset[int]) -> bool:
    """Whether one of these transactions may be waiting for a standby. True if the role may not see
    what other sessions wait for.
    """
    wire_xids = ",".join(str(xid % 2**32) for xid in running)
    [(may_wait,)] = await connection.query(
        """select current_setting('synchronous_standby_names') <> ''
                  and (not pg_has_role(current_user, 'pg_read_all_stats', 'usage')
                       or exists (select from pg_stat_activity where wait_event = 'SyncRep'
                                  and (backend_xid is null or backend_xid::text = any ($1::text[]))))""",
        f"{{{wire_xids}}}",
    )
    return may_wait == "t"
