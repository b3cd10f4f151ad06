"""standing: the state of a message at each consumer of its stream."""

from __future__ import annotations

from headrace.model.records import Standing
from headrace.store.database.database import Executor


async def standing(executor: Executor, stream: str, seq: int, key: str) -> list[Standing]:
    """The state of a message at each consumer, by name. Raises `UnknownStream`."""
    rows = await executor.fetch("select * from headrace_internal.key_states($1, $2, $3)", stream, seq, key)
    return [
        Standing(
            consumer_id=str(row["consumer_id"]),
            consumer=row["consumer"],
            state=row["state"],
            attempts=row["attempts"],
            until=row["until"],
            owner=None if row["owner"] is None else str(row["owner"]),
            failed_at=row["failed_at"],
            error=row["error"],
            error_type=row["error_type"],
        )
        for row in rows
    ]
