"""Declare and find streams and consumers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from headrace.model import conditions
from headrace.model.errors import UnknownConsumer, UnknownStream
from headrace.model.push import Push
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.model.text.masking import masked_push
from headrace.store.database.database import Database, Executor
from headrace.store.database.errors import consumer_gone


class Declared(msgspec.Struct, frozen=True):
    """The result of declaring a consumer: its id, and the settings that were changed, as {setting: (before,
    now)}. `new` means just created.
    """

    id: int
    new: bool
    changed: dict[str, tuple[Any, Any]]


async def create_stream(executor: Executor, stream: str | StreamSpec) -> int:
    """Create the stream. An existing stream stays unchanged. Returns its id.

    Raises `InvalidInput` for an invalid name.
    """
    stream_id, _ = await declare_stream(executor, StreamSpec(name=stream) if isinstance(stream, str) else stream)
    return stream_id


async def declare_stream(executor: Executor, spec: StreamSpec) -> tuple[int, bool]:
    """As `create_stream`. Returns the id, and whether the stream is new."""
    row = await executor.fetchrow(
        "select stream_id, new from headrace_internal.declare_stream($1, $2)", spec.name, _settings(spec)
    )
    return row["stream_id"], row["new"]


async def edit_stream(executor: Executor, spec: StreamSpec) -> None:
    """Change what a stream keeps. Raises `UnknownStream`, and `InvalidInput` for settings that can't be changed."""
    await executor.fetchval("select headrace_internal.edit_stream($1, $2)", spec.name, _settings(spec))


def _settings(spec: StreamSpec) -> str:
    settings = msgspec.to_builtins(spec)
    del settings["name"]
    return msgspec.json.encode(settings).decode()


async def lock_declarations(executor: Executor) -> None:
    """Let no other session declare or edit a consumer, or edit a stream by its settings, until the end of the transaction. For
    an edit of some settings that reads the others first."""
    await executor.fetchval("select pg_advisory_xact_lock(1212498508, 0)")


async def declare_consumer(executor: Executor, spec: ConsumerSpec) -> Declared:
    """Create the consumer, or change its settings and keep its position. Raises `UnknownStream`."""
    # Encoded by itself, so that long numbers stay as they are.
    where = None if spec.where is None else msgspec.Raw(conditions.encode(spec.where).encode())
    settings = {**msgspec.structs.asdict(spec), "where": where}
    del settings["stream"], settings["name"]
    text = msgspec.json.encode(settings).decode()
    row = await executor.fetchrow(
        "select * from headrace_internal.declare_consumer($1, $2, $3)", spec.stream, spec.name, text
    )
    before = msgspec.json.decode(row["before"] or "null")
    return Declared(row["consumer_id"], before is None, _changes(before or {}, msgspec.json.decode(text)))


def _changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    now["ack_wait"] = round(now["ack_wait"], 6)  # as it is stored, in microseconds
    return {
        setting: (_plain(setting, old), _plain(setting, now[setting]))
        for setting, old in before.items()
        if setting in now and old != now[setting]  # a newer schema may have others
    }


def _plain(setting: str, value: Any) -> Any:
    """A value for logs and errors. Hides the credentials of a push consumer."""
    return masked_push(value) if setting == "push" and value else value


async def consumer_id(executor: Executor, stream: str, name: str) -> int:
    """The id of a consumer. Raises `UnknownConsumer`."""
    found: int | None = await executor.fetchval(
        "select c.id from headrace_internal.consumers c join headrace_internal.streams s on s.id = c.stream_id where s.name = $1 and c.name = $2",
        stream,
        name,
    )
    if found is None:
        raise UnknownConsumer.named(stream, name)
    return found


async def consumer_spec(executor: Executor, consumer: int) -> tuple[ConsumerSpec, int]:
    """The settings of a consumer, and their version, which rises when they change. Those of `push` may be invalid by
    today's rules, see `Push.stored`. Raises `UnknownConsumer`."""
    row = await executor.fetchrow(
        """select s.name as stream, c.name, c.version, c.deliver_policy, c.start_seq, c.start_time,
                  headrace_internal.settings_of_consumer(c.id) as settings, c.filter_where::text as condition
           from headrace_internal.consumers c join headrace_internal.streams s on s.id = c.stream_id where c.id = $1""",
        consumer,
    )
    if row is None:
        if isinstance(executor, Database):
            await executor.refuse_while_recovering()
        raise consumer_gone()
    given = {name: row[name] for name in ("stream", "name", "deliver_policy", "start_seq", "start_time")}
    settings = msgspec.json.decode(row["settings"])
    del settings["where"]
    push = settings.pop("push", None)
    spec = msgspec.convert({**settings, **given, "push": None if push is None else Push.stored(push)}, ConsumerSpec)
    if row["condition"] is not None:  # as text, because long numbers would be rounded otherwise
        spec = msgspec.structs.replace(spec, where=conditions.parse(row["condition"]))
    return spec, row["version"]


async def consumer_exists(executor: Executor, consumer: int, streams: Collection[str] | None = None) -> bool:
    """Whether a consumer, given by its number, exists on one of the streams.

    Args:
        streams: the names of the streams to look at. None for all.
    """
    found: bool = await executor.fetchval(
        """select exists (
               select from headrace_internal.consumers c join headrace_internal.streams s on s.id = c.stream_id
               where c.id = $1 and ($2::text[] is null or s.name = any($2)))""",
        consumer,
        None if streams is None else list(streams),
    )
    if not found and isinstance(executor, Database):
        await executor.refuse_while_recovering()
    return found


class Found(msgspec.Struct, frozen=True):
    """A consumer that was found. Numbers are those of the database, and ids those of the HTTP API."""

    number: int
    id: str
    name: str
    stream_number: int
    stream_id: str
    stream: str


async def find_stream(executor: Executor, ref: str) -> tuple[int, str, str]:
    """The number, id and name of a stream, found by its id or else its name. Raises `UnknownStream`."""
    row = (
        None
        if "\0" in ref
        else await executor.fetchrow(
            "select id, uid::text, name from headrace_internal.streams where name = $1 or uid::text = $1 order by name = $1 limit 1",
            ref,
        )
    )
    if row is None:
        raise UnknownStream(f"The stream {ref!r} does not exist.")
    return tuple(row)


async def streams_named(executor: Executor, names: Collection[str]) -> list[tuple[int, str, str]]:
    """The number, id and name of each existing stream with one of these names."""
    rows = await executor.fetch(
        "select id, uid::text, name from headrace_internal.streams where name = any($1::text[])", list(names)
    )
    return [tuple(row) for row in rows]


async def find_consumers(executor: Executor, ref: str, streams: Collection[str] | None = None) -> list[Found]:
    """The consumer with that id, or else those with that name, sorted by stream.

    Args:
        streams: the names of the streams to look at. None for all.
    """
    if "\0" in ref:  # no text in Postgres has one
        return []
    rows = await executor.fetch(
        """select c.id, c.uid::text, c.name, s.id, s.uid::text, s.name
           from headrace_internal.consumers as c join headrace_internal.streams as s on s.id = c.stream_id
           where (c.name = $1 or c.uid::text = $1) and ($2::text[] is null or s.name = any($2))
           order by s.name""",
        ref,
        None if streams is None else list(streams),
    )
    found = [Found(*row) for row in rows]
    return [one for one in found if one.id == ref] or found
