"""scheduled: list the messages that a stream publishes later, and cancel them before that."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.messages.scheduled import ScheduledMessage, ScheduledPlace
from headrace.model.pages import Page
from headrace.store.database.database import Executor
from headrace.store.database.pages import page_of
from headrace.store.messages.peek import CONTENT, DECODED, Contents, read


async def scheduled_messages(
    executor: Executor,
    stream: str,
    *,
    limit: int = 100,
    after: ScheduledPlace | None = None,
    before: ScheduledPlace | None = None,
    contents: Contents = DECODED,
) -> Page[ScheduledMessage]:
    """The scheduled messages of a stream in the order in which they are due: the first ones, or the last ones if `before`
    is given. Raises `UnknownStream`.
    """
    place = before or after or (None, 0)
    rows = await executor.fetch(
        "select * from headrace_internal.scheduled_page($1, $2, $3, $4::timestamptz, $5, $6)",
        stream,
        limit,
        contents.max_bytes,
        *place,
        before is not None,
    )
    return await page_of(
        rows,
        lambda row: ScheduledMessage(**read(row, contents.raw)),
        limit=limit,
        max_bytes=contents.max_bytes,
        sized=CONTENT,
        backwards=before is not None,
    )


async def unschedule(executor: Executor, stream: str, ids: Sequence[int] | None) -> int:
    """Cancel scheduled messages with these ids, or those that are due first if `ids` is None, at most 10,000. Returns how
    many. Raises `UnknownStream`.
    """
    count: int = await executor.fetchval(
        "select headrace_internal.unschedule($1, $2)", stream, None if ids is None else list(ids)
    )
    return count
