"""peek: look at messages without touching them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.model import conditions
from headrace.model.conditions import Condition
from headrace.model.records import PeekedMessage, StoredMessage
from headrace.store.database import Executor


async def peek(executor: Executor, consumer: int, *, limit: int = 10) -> list[PeekedMessage]:
    """What a consumer is at: at most `limit` messages that are in flight, parked, blocked, and that come next, each.

    What comes next is looked for among the 10,000 messages above the position.
    """
    rows = await executor.fetch("select * from headrace.peek($1, $2)", consumer, limit)
    return [
        PeekedMessage(**{**_read(row), "owner": None if row["owner"] is None else str(row["owner"])}) for row in rows
    ]


async def messages(
    executor: Executor,
    stream: str,
    *,
    filters: Sequence[str] | None = None,
    where: Condition | None = None,
    start_seq: int | None = None,
    limit: int = 10,
    newest: bool = False,
) -> list[StoredMessage]:
    """Messages of a stream that match, in the order of seq: the first ones from `start_seq` on, or the `newest`.

    Raises `UnknownStream`.
    """
    rows = await executor.fetch(
        "select * from headrace.messages($1, $2, $3, $4, $5, $6)",
        stream, filters, encoded(where), start_seq, limit, newest,
    )  # fmt: skip
    return [StoredMessage(**_read(row)) for row in rows]


async def latest(executor: Executor, stream: str, key: str) -> StoredMessage | None:
    """The latest message of a key, None if there is none. Raises `UnknownStream`."""
    row = await executor.fetchrow("select * from headrace.latest($1, $2)", stream, key)
    return None if row is None else StoredMessage(**_read(row))


def _read(row: Any) -> dict[str, Any]:
    return {**row, "data": decoded(row["data"]), "headers": decoded(row["headers"] or "null")}


def decoded(text: str) -> Any:
    """JSON as Python; as text where Postgres takes for JSON what Python can't hold."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def encoded(where: Condition | None) -> str | None:
    """A condition as the database takes it."""
    return None if where is None else conditions.encode(where)
