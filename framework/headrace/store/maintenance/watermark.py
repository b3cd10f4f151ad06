"""The transactions that are adding rows to a table, from which a watermark is computed.

See `headrace.runtime.maintenance.watermark`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from headrace.store.database.database import Executor


class OpenInserts(NamedTuple):
    """The transactions that are adding rows to a table.

    Attributes:
        at: the time of this call, on the server's clock.
        holders: the transactions that hold the lock for adding rows.
        history: the identity of the database's history. Another one means that the database was set back.
    """

    at: datetime
    holders: set[str]
    history: Any


async def open_inserts(executor: Executor, table: str) -> OpenInserts:
    """Return the transactions that are adding rows to a table, given by its qualified name."""
    at, holders, history = await executor.fetchrow(
        """select a.at, a.holders, (select headrace_internal.history_identity(headrace_internal.timeline_identity(id, xmin))
                                      from headrace_internal.history limit 1) as history
           from headrace_internal.open_inserts_of($1::text) as a""",
        table,
    )
    return OpenInserts(at, set(holders), history)
