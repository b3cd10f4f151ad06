"""Dead letters: list them, deliver them again, or discard them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.model.records import DeadLetter
from headrace.store.database import Executor


async def dead_letters(executor: Executor, consumer: int, *, above: int = 0, limit: int = 100) -> list[DeadLetter]:
    """Dead letters with a seq above `above`, in the order of seq, at most `limit`."""
    rows = await executor.fetch(
        """select seq, key, data, headers, created_at, attempts, reason, error, traceback, blocks, died_at
           from headrace.dead_letters where consumer_id = $1 and seq > $2 order by seq limit $3""",
        consumer,
        above,
        limit,
    )
    return [
        DeadLetter(
            **{
                **row,
                "data": _decoded(row["data"]),
                "headers": _decoded(row["headers"] or "null"),
            }
        )
        for row in rows
    ]


def _decoded(text: str) -> Any:
    """The data; as text where Postgres takes for JSON what Python can't hold. Just such messages die."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


async def redrive(executor: Executor, consumer: int, seqs: Sequence[int] | None = None) -> int:
    """Deliver dead letters again, attempts counted from zero; `seqs` says which, None all. Returns how many.

    A key that a dead letter blocks goes on, from that message; others that block the same key are delivered again with it.
    """
    count: int = await executor.fetchval("select headrace.redrive($1, $2)", consumer, seqs)
    return count


async def discard(executor: Executor, consumer: int, seqs: Sequence[int] | None = None) -> int:
    """Forget dead letters; `seqs` says which, None all. Returns how many.

    A key that they block goes on after them, once no other dead letter blocks it.
    """
    count: int = await executor.fetchval("select headrace.discard($1, $2)", consumer, seqs)
    return count
