"""Settling: before its first chunk a process waits for transactions that were captured before it began, and are not to be seen yet.

A transaction that commits is in the WAL before others see it; and it may have been captured by a process that is no more, so that nobody
remembers it. Between the two is mostly a moment. But where the server waits for a synchronous standby, it is as long as that takes.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

from headrace.sources.postgres.backfill import chunks
from headrace.sources.postgres.backfill.visibility import Snapshot
from headrace.sources.postgres.connection.link import Link

PATIENCE = 2.0
"""Seconds within which a commit that waits for no standby is to be seen."""

PAUSE = 0.05
"""Seconds between two looks."""


async def settle(link: Link, clock: Callable[[], float]) -> None:
    """Wait until each transaction whose commit is in the WAL now is to be seen. Raises `SourceUnavailable`.

    Those that run now, and have not begun to commit, may go on for hours: so after `PATIENCE` only those are waited for that may be waiting
    for a standby.
    """
    await chunks.mark(
        link, "settling"
    )  # its own id is larger than that of all before it, so these are all in the snapshot
    left = (await _snapshot(link)).running
    until = clock() + PATIENCE
    while left and (clock() < until or await _wait_for_a_standby(link, left)):
        await anyio.sleep(PAUSE)
        left &= (await _snapshot(link)).running


async def _snapshot(link: Link) -> Snapshot:
    [(text,)] = await link.query("select pg_current_snapshot()")
    assert text is not None
    return Snapshot.of(text)


async def _wait_for_a_standby(link: Link, running: frozenset[int]) -> bool:
    """Whether one of these may be waiting for a standby. Who may not see what others wait for takes that for granted."""
    on_wire = ",".join(str(xid % 2**32) for xid in running)
    [(may,)] = await link.query(
        """select current_setting('synchronous_standby_names') <> ''
                  and (not pg_has_role(current_user, 'pg_read_all_stats', 'usage')
                       or exists (select from pg_stat_activity where wait_event = 'SyncRep'
                                  and (backend_xid is null or backend_xid::text = any ($1::text[]))))""",
        f"{{{on_wire}}}",
    )
    return may == "t"
