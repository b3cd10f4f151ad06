"""search: look through a stream in bounded steps."""

from __future__ import annotations

from datetime import datetime

from headrace.model.records import StoredMessage
from headrace.model.watching.operations import SearchStep
from headrace.store.database.database import Executor
from headrace.store.database.pages import Turns
from headrace.store.messages.peek import DECODED, Contents, Matching, content_size, stored

EXAMINED = 200_000
"""The most messages that a step examines."""

STEP_TIME = 0.8
"""Seconds after which a step ends, at the next message."""


class Search(Matching, frozen=True, kw_only=True):
    """The messages that are searched: those that match everything that is given.

    Attributes:
        before, after: only messages with a smaller or a larger seq.
        since, until: only messages published at this time or later, and before that time.
    """

    after: int | None = None
    before: int | None = None
    since: datetime | None = None
    until: datetime | None = None


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
    """Search a stream for messages that match, from the newest on, or upwards from `after`. It ends after `limit` messages
    that match, or `max_bytes` of them, after `examine` messages or `seconds`. Raises `UnknownStream`.
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
