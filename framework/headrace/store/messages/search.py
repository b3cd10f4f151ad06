"""search: look through a stream in bounded steps."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from headrace.model.conditions import Condition
from headrace.model.records import StoredMessage
from headrace.model.watching.operations import SearchStep
from headrace.store.database.database import Executor
from headrace.store.database.pages import Turns
from headrace.store.messages.peek import content_size, encoded, stored

EXAMINED = 200_000
"""The most messages that a step examines."""

STEP_TIME = 0.8
"""Seconds after which a step ends, at the next message."""


async def search(
    executor: Executor,
    stream: str,
    *,
    filters: Sequence[str] | None = None,
    where: Condition | None = None,
    after: int | None = None,
    before: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 50,
    max_bytes: int | None = None,
    raw: bool = False,
    examine: int = EXAMINED,
    seconds: float = STEP_TIME,
) -> SearchStep:
    """Search a stream for messages that match, from the newest on, or upwards from `after`. It ends after `limit` messages
    that match, or `max_bytes` of them, after `examine` messages or `seconds`.

    Args:
        before, after: only messages with a smaller or a larger seq.
        since, until: only messages published at this time or later, and before that time.
        raw: as for `messages`.

    Raises:
        UnknownStream.
    """
    upwards = after is not None
    matching, within = (stream, filters, encoded(where)), (after, before, since, until, upwards)
    arguments = (*matching, *within, limit, examine, max_bytes, seconds)
    rows = await executor.fetch(
        "select * from headrace_internal.search_step($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)", *arguments
    )
    found, turns = [], Turns()
    for row in rows[:-1]:
        columns = {name: row[name] for name in ("seq", "key", "data", "headers", "created_at")}
        found.append(StoredMessage(**stored(columns, raw)))
        await turns.done(content_size(row))
    end = rows[-1]
    return SearchStep(
        messages=found, examined=end["examined"], position=end["reached"], more=end["more"], remaining=end["remaining"]
    )
