"""peek: look at messages without touching them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from headrace.model import conditions
from headrace.model.conditions import Condition
from headrace.model.records import PeekedMessage, StoredMessage
from headrace.store.database import Executor


async def peek(executor: Executor, consumer: int, *, limit: int = 10, raw: bool = False) -> list[PeekedMessage]:
    """What a consumer is at: at most `limit` messages that are in flight, parked, blocked, and that come next, each.

    What comes next is looked for among the 10,000 messages above the position. `raw` as for `messages`.
    """
    rows = await executor.fetch("select * from headrace.peek($1, $2)", consumer, limit)
    return [
        PeekedMessage(**{**read(row, raw), "owner": None if row["owner"] is None else str(row["owner"])})
        for row in rows
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
    raw: bool = False,
) -> list[StoredMessage]:
    """Messages of a stream that match, in the order of seq: the first ones from `start_seq` on, or the `newest`.

    Args:
        raw: data and headers come as `msgspec.Raw`, letter by letter as they were published. Python's numbers hold less than JSON's.

    Raises:
        UnknownStream.
    """
    rows = await executor.fetch(
        "select * from headrace.messages($1, $2, $3, $4, $5, $6)",
        stream, filters, encoded(where), start_seq, limit, newest,
    )  # fmt: skip
    return [StoredMessage(**read(row, raw)) for row in rows]


async def latest(executor: Executor, stream: str, key: str, *, raw: bool = False) -> StoredMessage | None:
    """The latest message of a key, None if there is none. `raw` as for `messages`. Raises `UnknownStream`."""
    row = await executor.fetchrow("select * from headrace.latest($1, $2)", stream, key)
    return None if row is None else StoredMessage(**read(row, raw))


def read(row: Any, raw: bool) -> dict[str, Any]:
    """The columns of a message, with its data and headers as Python, or as they stand."""
    if raw:
        headers = row["headers"]
        return {**row, "data": msgspec.Raw(row["data"]), "headers": None if headers is None else msgspec.Raw(headers)}
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


# One statement, so that what is read and where from are of one server. A row at least, for the latter.
_MESSAGES_AT = """select h.history, m.seq, m.key, m.data, m.headers, m.created_at
                  from (select (
                      select headrace.history_identity(headrace.timeline_identity(id, xmin)) from headrace.history order by id limit 1) as history) as h
                  left join headrace.messages_at($1, $2) as m on true"""


async def messages_at(
    executor: Executor, stream: int, seqs: Sequence[int]
) -> tuple[UUID | None, list[tuple[int, str, str, str | None, datetime]]]:
    """The messages at these seqs, as far as the stream of that number has them.

    Returns:
        The identity of the history that they were read from, as `Batch.history` has it, or None while it has none; and of each message
        seq, key, data, headers and time, as stored.
    """
    rows = await executor.fetch(_MESSAGES_AT, stream, seqs)
    return rows[0]["history"], [tuple(row)[1:] for row in rows if row["seq"] is not None]
