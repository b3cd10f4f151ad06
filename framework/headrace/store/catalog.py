"""Streams and consumers: declare them, and ask how they are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from headrace.model.errors import UnknownConsumer, UnknownStream
from headrace.model.records import ConsumerInfo, StreamInfo
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.store.database import Executor


class Declared(msgspec.Struct, frozen=True):
    """A consumer's id, and its settings as they had been if they differed: {setting: (before, now)}. `new`: just made."""

    id: int
    new: bool
    changed: dict[str, tuple[Any, Any]]


async def create_stream(executor: Executor, stream: str | StreamSpec) -> int:
    """Create the stream unless it exists; one that does stays as it is. Returns its id.

    Raises `InvalidInput` for a name that can't be.
    """
    spec = StreamSpec(name=stream) if isinstance(stream, str) else stream
    stream_id: int = await executor.fetchval("select headrace.create_stream($1, $2)", spec.name, _settings(spec))
    return stream_id


async def edit_stream(executor: Executor, spec: StreamSpec) -> None:
    """Change what a stream keeps. Raises `UnknownStream`, and `InvalidInput` for what can't be changed."""
    await executor.fetchval("select headrace.edit_stream($1, $2)", spec.name, _settings(spec))


def _settings(spec: StreamSpec) -> str:
    settings = msgspec.to_builtins(spec)
    del settings["name"]
    return msgspec.json.encode(settings).decode()


async def declare_consumer(executor: Executor, spec: ConsumerSpec) -> Declared:
    """Create the consumer, or change its settings and keep its place. Raises `UnknownStream`."""
    row = await executor.fetchrow(
        "select * from headrace.declare_consumer($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
        spec.stream,
        spec.name,
        spec.filters,
        _where(spec),
        spec.ordered,
        timedelta(seconds=spec.ack_wait),
        spec.max_ack_pending,
        spec.max_deliver,
        msgspec.json.encode(spec.backoff).decode(),
        spec.on_exhausted,
        spec.max_waiting,
        spec.deliver_policy,
        spec.start_seq,
        spec.start_time,
    )
    before = msgspec.json.decode(row["before"] or "null")
    return Declared(row["consumer_id"], before is None, _changes(before or {}, spec))


def _where(spec: ConsumerSpec) -> str | None:
    if spec.where is None:
        return None
    from headrace.model import conditions

    return conditions.encode(spec.where)


def _changes(before: dict[str, Any], spec: ConsumerSpec) -> dict[str, tuple[Any, Any]]:
    # By way of JSON and microseconds, since that is how the old ones were kept.
    where = msgspec.json.decode(_where(spec) or "null")
    now = {**msgspec.json.decode(msgspec.json.encode(spec)), "ack_wait": round(spec.ack_wait, 6), "where": where}
    return {setting: (old, now[setting]) for setting, old in before.items() if old != now[setting]}


async def consumer_id(executor: Executor, stream: str, name: str) -> int:
    """The id of a consumer. Raises `UnknownConsumer`."""
    found: int | None = await executor.fetchval(
        "select c.id from headrace.consumers c join headrace.streams s on s.id = c.stream_id where s.name = $1 and c.name = $2",
        stream,
        name,
    )
    if found is None:
        raise UnknownConsumer(f"There is no consumer {name!r} on the stream {stream!r}.")
    return found


async def streams(executor: Executor) -> list[StreamInfo]:
    """All streams, by name."""
    return [StreamInfo(**row) for row in await executor.fetch("select * from headrace.stream_info()")]


async def stream(executor: Executor, name: str) -> StreamInfo:
    """One stream. Raises `UnknownStream`."""
    row = await executor.fetchrow("select * from headrace.stream_info($1)", name)
    if row is None:
        raise UnknownStream(f"There is no stream {name!r}.")
    return StreamInfo(**row)


async def consumers(executor: Executor, stream: str | None = None) -> list[ConsumerInfo]:
    """The consumers of a stream, or of all."""
    return [_consumer(row) for row in await executor.fetch("select * from headrace.consumer_info($1)", stream)]


async def consumer(executor: Executor, stream: str, name: str) -> ConsumerInfo:
    """One consumer. Raises `UnknownConsumer`."""
    row = await executor.fetchrow("select * from headrace.consumer_info($1, $2)", stream, name)
    if row is None:
        raise UnknownConsumer(f"There is no consumer {name!r} on the stream {stream!r}.")
    return _consumer(row)


def _consumer(row: Any) -> ConsumerInfo:
    return ConsumerInfo(**{**row, "settings": msgspec.json.decode(row["settings"])})
