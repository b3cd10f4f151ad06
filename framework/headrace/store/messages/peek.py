"""peek: read messages without changing their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from headrace.model import conditions
from headrace.model.conditions import Condition
from headrace.model.conditions.selections import Filter
from headrace.model.messages.payloads import expiry
from headrace.model.pages import Page
from headrace.model.records import PEEK_STATES, PeekedMessage
from headrace.store.database.database import Executor
from headrace.store.database.pages import page_of, text_size


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """How the data and headers of messages are read.

    Attributes:
        max_bytes: return no more messages once the data and headers of those found have this size, as text.
        raw: return data and headers as `msgspec.Raw`, exactly as published. Python's numbers can't
            represent all of JSON's.
    """

    max_bytes: int | None = None
    raw: bool = False


DECODED = Contents()
"""As Python objects, without a limit."""


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that match everything that is given."""

    filters: Sequence[str] | None = None
    where: Condition | None = None

    def encoded(self) -> str | None:
        """The selection as the functions of the schema take it."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return selected(given.pop("filters"), given.pop("where"), given)


class SeqRange(Matching, frozen=True, kw_only=True):
    """Messages of a stream that match everything that is given. Seqs are inclusive at both ends."""

    start_seq: int | None = None
    end_seq: int | None = None


async def peek(
    executor: Executor,
    consumer: int,
    *,
    limit: int = 10,
    after: int = 0,
    before: int | None = None,
    states: Sequence[str] | None = None,
    contents: Contents = DECODED,
) -> Page[PeekedMessage]:
    """The current messages of a consumer: at most `limit` each that are in flight, parked, blocked, or next, in this
    order and in the order of seq. They are the first of each state, or the last if `before` is given.

    The page says that there are more only if `contents.max_bytes` has cut it. Then it has all messages of each state up to its
    largest seq, or from its smallest seq on if `before` is given, as far as `limit` allows.

    Next messages are searched among the 10,000 messages above the position.

    Args:
        after, before: only messages with a larger or a smaller seq.
        states: only messages in these states.
        contents: the messages of all states count for `max_bytes`, in the order in which they are read.
    """
    arguments = (consumer, limit, after, contents.max_bytes, before, states)
    rows = await executor.fetch(
        "select * from headrace_internal.peek_page($1, $2, p_after => $3, p_bytes => $4, p_before => $5, p_states => $6)",
        *arguments,
    )
    page = await page_of(rows, lambda row: _peeked(row, contents.raw), max_bytes=contents.max_bytes, sized=CONTENT)
    page.sort(key=lambda message: (PEEK_STATES.index(message.state), message.seq))
    return page


def _peeked(row: Any, raw: bool) -> PeekedMessage:
    return PeekedMessage(**{**stored(row, raw), "owner": None if row["owner"] is None else str(row["owner"])})


def stored(row: Any, raw: bool) -> dict[str, Any]:
    return {**read(row, raw), "expires_at": expiry(row["headers"], row["created_at"])}


def read(row: Any, raw: bool) -> dict[str, Any]:
    """The columns of a message. Its data and headers are decoded, or unchanged if `raw`."""
    if raw:
        headers = row["headers"]
        return {**row, "data": msgspec.Raw(row["data"]), "headers": None if headers is None else msgspec.Raw(headers)}
    return {**row, "data": decoded(row["data"]), "headers": decoded(row["headers"] or "null")}


CONTENT = ("data", "headers")
"""The columns with the data and headers of a message."""


def content_size(row: Any) -> int:
    """The size of the data and headers of a message, as text in bytes."""
    return sum(text_size(row[column]) for column in CONTENT)


def decoded(text: str) -> Any:
    """Decode JSON. Returns the text if Postgres accepts it as JSON and Python can't represent it."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def selected(filters: Filter, where: Condition | None, others: Mapping[str, Any]) -> str | None:
    """Criteria as the functions of the schema take them: as JSON. None if none is given."""
    criteria = {**others, "filter": filters, "where": None if where is None else msgspec.Raw(conditions.encode(where))}
    given = {name: value for name, value in criteria.items() if value is not None}
    return msgspec.json.encode(given).decode() if given else None


_HISTORY = """(select (
    select headrace_internal.history_identity(headrace_internal.timeline_identity(id, xmin)) from headrace_internal.history order by id limit 1) as history)"""

# One statement, so that the rows and the history are from one server. It returns at least one row, for the history.
_MESSAGES_AT = f"""select h.history, m.seq, m.key, m.data, m.headers, m.created_at
                  from {_HISTORY} as h
                  left join headrace_internal.messages_at($1, $2) as m on true"""


async def messages_at(
    executor: Executor, stream: int, seqs: Sequence[int]
) -> tuple[UUID | None, list[tuple[int, str, str, str | None, datetime]]]:
    """Read the messages at these seqs, as far as they exist in the stream of that number.

    Returns:
        The identity of the history from which they were read, as in `Batch.history`, or None if it has none yet.
        And the seq, key, data, headers and time of each message, as stored.
    """
    rows = await executor.fetch(_MESSAGES_AT, stream, seqs)
    return rows[0]["history"], [tuple(row)[1:] for row in rows if row["seq"] is not None]


async def history_and_stream(executor: Executor, consumer: int) -> tuple[UUID | None, int | None]:
    """The identity of the history, as in `Batch.history`, and in it the number of the consumer's stream. None if there is
    no history yet, and no such consumer."""
    row = await executor.fetchrow(
        f"select h.history, (select stream_id from headrace_internal.consumers where id = $1) from {_HISTORY} as h",
        consumer,
    )
    return row[0], row[1]
