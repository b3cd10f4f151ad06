"""search: look through a stream in bounded steps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from headrace.model.conditions import Condition
from headrace.model.pages import Page
from headrace.model.records import StoredMessage
from headrace.model.watching.operations import SearchStep
from headrace.store.database.database import Executor
from headrace.store.database.pages import Turns
from headrace.store.messages.peek import DECODED, Contents, content_size, encoded, stored

EXAMINED = 200_000
"""The most messages that a step examines."""

STEP_TIME = 0.8
"""Seconds after which a step ends, at the next message."""


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that are searched: those that match everything that is given.

    Attributes:
        before, after: only messages with a smaller or a larger seq.
        since, until: only messages published at this time or later, and before that time.
    """

    filters: Sequence[str] | None = None
    where: Condition | None = None
    after: int | None = None
    before: int | None = None
    since: datetime | None = None
    until: datetime | None = None


class SeqRange(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a stream that match everything that is given. Seqs are inclusive at both ends."""

    filters: Sequence[str] | None = None
    where: Condition | None = None
    start_seq: int | None = None
    end_seq: int | None = None


async def messages(
    executor: Executor,
    stream: str,
    chosen: SeqRange = SeqRange(),  # noqa: B008 - frozen
    *,
    limit: int = 10,
    newest: bool = False,
    contents: Contents = DECODED,
) -> Page[StoredMessage]:
    """Messages of a stream that match, in the order of seq: the first ones, or the `newest`, as one step of a search
    finds them. Raises `UnknownStream`.
    """
    start, end = chosen.start_seq, chosen.end_seq
    wanted = Search(
        filters=chosen.filters,
        where=chosen.where,
        after=None if start is None else start - 1,
        before=None if end is None else end + 1,
    )
    step = await search(executor, stream, wanted, limit=limit, upwards=not newest, contents=contents)
    found = reversed(step.messages) if newest else step.messages
    return Page(found, more=step.more, reached=step.position)


async def search(
    executor: Executor,
    stream: str,
    wanted: Search = Search(),  # noqa: B008 - frozen
    *,
    limit: int = 50,
    upwards: bool | None = None,
    contents: Contents = DECODED,
    examine: int = EXAMINED,
    seconds: float = STEP_TIME,
) -> SearchStep:
    """Search a stream for messages that match, from the newest on, or `upwards`, as by default if there is an `after`. It
    ends after `limit` messages that match, or `max_bytes` of them, after `examine` messages or `seconds`. With an index of
    keys, it looks at those messages only that have matching keys. Raises `UnknownStream`.
    """
    matching = (stream, wanted.filters, encoded(wanted.where))
    within = (
        wanted.after,
        wanted.before,
        wanted.since,
        wanted.until,
        wanted.after is not None if upwards is None else upwards,
    )
    arguments = (*matching, *within, limit, examine, contents.max_bytes, seconds)
    rows = await executor.fetch(
        "select * from headrace_internal.search_step($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)", *arguments
    )
    found, turns = [], Turns()
    for row in rows[:-1]:
        columns = {name: row[name] for name in ("seq", "key", "data", "headers", "created_at")}
        found.append(StoredMessage(**stored(columns, contents.raw)))
        await turns.done(content_size(row))
    end = rows[-1]
    return SearchStep(
        messages=found, examined=end["examined"], position=end["reached"], more=end["more"], remaining=end["remaining"]
    )
