"""The state of streams and consumers."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.model import conditions
from headrace.model.clock import zoned
from headrace.model.errors import HeadraceError, NotGranted, UnknownConsumer, UnknownStream
from headrace.model.pages import Page
from headrace.model.records import ConsumerInfo, StreamInfo
from headrace.model.text.masking import HIDDEN
from headrace.store.database.database import Executor
from headrace.store.database.pages import page_of

# How many messages above a consumer's position are examined at most, to count its pending messages.
MAX_LOOK = 10_000


async def streams(
    executor: Executor, *, after: str | None = None, before: str | None = None, limit: int | None = None
) -> Page[StreamInfo]:
    """Streams by name: the first ones, or the last ones if `before` is given.

    Args:
        after, before: only those whose name comes after or before this one.
        limit: the maximum number. None for all.
    """
    arguments = (after, before, limit)
    rows = await executor.fetch(
        """select info.* from headrace_internal.stream_names($1, $2, $3) with ordinality as listed (name, place)
           cross join lateral headrace_internal.stream_info(listed.name) as info order by listed.place""",
        *arguments,
    )
    return await page_of(rows, _stream, limit=limit, backwards=before is not None)


async def stream(executor: Executor, name: str) -> StreamInfo:
    """One stream.

    Raises:
        UnknownStream: there is none of that name, or the database role may do nothing with it.
        NotGranted: the database role may use the stream, such as publish, but not see its figures.
    """
    row = await executor.fetchrow("select * from headrace_internal.stream_info($1)", name)
    if row is None:
        # A role with a grant gets no figures of a stream to which it may only publish.
        if await executor.fetchval("select exists (select from headrace_internal.streams where name = $1)", name):
            raise NotGranted(
                f"The database role may not see the figures of the stream {name!r}. A member of the owner can allow it:"
                f" headrace grant observe ROLE --stream {name}."
            )
        raise UnknownStream(f"The stream {name!r} does not exist.")
    return _stream(row)


def _stream(row: Any) -> StreamInfo:
    found = dict(row)
    return StreamInfo(**{**msgspec.json.decode(found.pop("settings")), **found, "id": str(found["id"])})


async def consumers(
    executor: Executor,
    stream: str | None = None,
    *,
    look: int = MAX_LOOK,
    after: tuple[str, str] | None = None,
    before: tuple[str, str] | None = None,
    limit: int | None = None,
    max_bytes: int | None = None,
) -> Page[ConsumerInfo]:
    """The consumers of a stream, or of all, by stream and name: the first ones, or the last ones if `before` is given.
    See `consumer`.

    Args:
        after, before: only those after or before this stream and name.
        limit: the maximum number. None for all.
        max_bytes: return no more consumers once the settings of those found have this size, as text.
    """
    arguments = (stream, look, after, before, limit, max_bytes)
    rows = await executor.fetch(
        """select info.* from headrace_internal.consumer_names($1, $3, $4, $5, $6) with ordinality as listed (stream, name, place)
           cross join lateral headrace_internal.consumer_info(listed.stream, listed.name, $2) as info order by listed.place""",
        *arguments,
    )
    return await page_of(
        rows, _consumer, limit=limit, max_bytes=max_bytes, sized=("settings",), backwards=before is not None
    )


async def consumer(executor: Executor, stream: str, name: str, *, look: int = MAX_LOOK) -> ConsumerInfo:
    """One consumer.

    Args:
        look: how many messages above the position are examined at most, to count the pending ones. 0
            examines none, which works even if the consumer's condition is too slow.

    Raises:
        UnknownConsumer.
    """
    row = await executor.fetchrow("select * from headrace_internal.consumer_info($1, $2, $3)", stream, name, look)
    if row is None:
        raise UnknownConsumer.named(stream, name)
    return _consumer(row)


def _described(where: Any) -> str:
    try:
        return conditions.describe(conditions.parse(where))
    except HeadraceError as error:  # one that only SQL reads, which must not keep others from being listed
        return f"unreadable: {error}"


def _consumer(row: Any) -> ConsumerInfo:
    found = dict(row)
    settings = {**msgspec.json.decode(found.pop("settings")), **msgspec.json.decode(found.pop("begins"))}
    if settings["where"] is not None:
        settings["where"] = _described(settings["where"])
    if settings["push"] is not None and settings["push"].get("secret"):
        settings["push"]["secret"] = HIDDEN
    found["id"], found["stream_id"] = str(found["id"]), str(found["stream_id"])
    found["paused_until"] = zoned(found["paused_until"])  # the driver's infinity has none
    lower, upper, at = (found.pop(f"gap_{part}") for part in ("lower", "upper", "at"))
    return ConsumerInfo(settings=settings, last_gap=None if at is None else (lower, upper, at), **found)
