"""The state of streams and consumers."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import msgspec

from headrace.model import conditions
from headrace.model.errors import UnknownConsumer, UnknownStream
from headrace.model.records import ConsumerInfo, StreamInfo
from headrace.model.text.masking import HIDDEN
from headrace.store.database.pool import Executor

# How many messages above a consumer's position are examined at most, to count its pending messages.
MAX_LOOK = 10_000


async def streams(executor: Executor) -> list[StreamInfo]:
    """All streams, by name."""
    return [_stream(row) for row in await executor.fetch("select * from headrace_internal.stream_info()")]


async def stream(executor: Executor, name: str) -> StreamInfo:
    """One stream. Raises `UnknownStream`."""
    row = await executor.fetchrow("select * from headrace_internal.stream_info($1)", name)
    if row is None:
        raise UnknownStream(f"The stream {name!r} does not exist.")
    return _stream(row)


def _stream(row: Any) -> StreamInfo:
    found = dict(row)
    return StreamInfo(**{**msgspec.json.decode(found.pop("settings")), **found, "id": str(found["id"])})


async def consumers(executor: Executor, stream: str | None = None, *, look: int = MAX_LOOK) -> list[ConsumerInfo]:
    """The consumers of a stream, or of all. See `consumer`."""
    rows = await executor.fetch("select * from headrace_internal.consumer_info($1, null, $2)", stream, look)
    return [_consumer(row) for row in rows]


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
        raise UnknownConsumer(f"The consumer {name!r} of the stream {stream!r} does not exist.")
    return _consumer(row)


def _consumer(row: Any) -> ConsumerInfo:
    found = dict(row)
    settings = {**msgspec.json.decode(found.pop("settings")), **msgspec.json.decode(found.pop("begins"))}
    if settings["where"] is not None:
        settings["where"] = conditions.describe(conditions.parse(settings["where"]))
    if settings["push"] is not None and settings["push"].get("secret"):
        settings["push"]["secret"] = HIDDEN
    found["id"], found["stream_id"] = str(found["id"]), str(found["stream_id"])
    if found["paused_until"] is not None and found["paused_until"].tzinfo is None:  # the driver's infinity
        found["paused_until"] = found["paused_until"].replace(tzinfo=UTC)
    lower, upper, at = (found.pop(f"gap_{part}") for part in ("lower", "upper", "at"))
    return ConsumerInfo(settings=settings, last_gap=None if at is None else (lower, upper, at), **found)
