"""standing: the state of a key's latest message at each consumer of its stream."""

from __future__ import annotations

from headrace.model.records import Standing
from headrace.store.database.database import Executor


async def standing(executor: Executor, stream: str, key: str) -> tuple[int, list[Standing]] | None:
    """The seq of the key's latest message, and its state at each consumer, by name. None if the key has no message.

    Raises `UnknownStream`.
    """
    rows = await executor.fetch("select * from headrace_internal.key_states($1, $2)", stream, key)
    if not rows:
        return None
    return rows[0]["seq"], [
        Standing(
            consumer_id=str(row["consumer_id"]),
            consumer=row["consumer"],
            state=row["state"],
            attempts=row["attempts"],
            until=row["until"],
            owner=None if row["owner"] is None else str(row["owner"]),
        )
        for row in rows
        if row["consumer"] is not None
    ]
