"""search: look through a stream in bounded steps."""

from __future__ import annotations

from datetime import datetime

from headrace.model.pages import Page
from headrace.model.records import StoredMessage
from headrace.model.watching.operations import SearchStep
from headrace.store.database.database import Executor
from headrace.store.database.pages import Turns
from headrace.store.messages.peek import DECODED, Contents, Matching, SeqRange, content_size, stored

EXAMINED = 200_000
"""The most messages that a step examines."""

STEP_TIME = 0.8
"""Seconds after which a step ends, at the next message."""


class Search(Matching, frozen=True, kw_only=True):
    """The messages that are searched: those that match everything that is given.

    Attributes:
        before, after: only messages with a smaller or a larger seq.
        since, until: only messages published at this time or later, and before that time.
        upwards: whether the first messages are found first. By default if there is an `after`.
    """

    after: int | None = None
    before: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    upwards: bool | None = None


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
        upwards=not newest,
    )
    step = await search(executor, stream, wanted, limit=limit, contents=contents)
    found = reversed(step.messages) if newest else step.messages
    return Page(found, more=step.more, reached=step.position)


async def search(
    executor: Executor,
    stream: str,
    wanted: Search = Search(),  # noqa: B008 - frozen
    *,
    limit: int = 50,
    contents: Contents = DECODED,
    examine: int = EXAMINED,
    seconds: float = STEP_TIME,
) -> SearchStep:
    """Search a stream for messages that match, from the newest on, or upwards. It ends after `limit` messages that match, or
    `max_bytes` of them, after `examine` messages or `seconds`. With an index of keys, it looks at those messages only that
    have matching keys. Raises `UnknownStream`.
    """
    arguments = (stream, wanted.encoded(), limit, examine, contents.max_bytes, seconds)
    rows = await executor.fetch("select * from headrace_internal.search_step($1, $2, $3, $4, $5, $6)", *arguments)
    found, turns = [], Turns()
    for row in rows[:-1]:
        columns = {name: row[name] for name in ("seq", "key", "data", "headers", "created_at")}
        found.append(StoredMessage(**stored(columns, contents.raw)))
        await turns.done(content_size(row))
    end = rows[-1]
    return SearchStep(
        messages=found, examined=end["examined"], position=end["reached"], more=end["more"], remaining=end["remaining"]
    )
