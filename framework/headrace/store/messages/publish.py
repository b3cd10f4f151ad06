"""publish: append messages to a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import asyncpg

from headrace.model.errors import HeadraceError
from headrace.model.messages.publish_options import PLAIN, PublishOptions, encoded
from headrace.model.watching.history_log import published, recorded
from headrace.store.database.database import Database, Executor
from headrace.store.database.direct_statements import MAX_STREAMS, DirectStatements
from headrace.store.database.missing_objects import with_repeat

T = TypeVar("T")

# The limits of one statement: large enough to amortise its cost, and small enough for everyone's memory.
CHUNK_MESSAGES = 1000
CHUNK_CHARACTERS = 8_000_000

# With explicit types, because not every driver asks the server for them. JSON is passed as text to connections of the user.
# One on which the user has set a codec for JSON would encode it again otherwise.
_PUBLISH = "select headrace.publish($1::text, $2::text, $3::text::json, $4::text::json)"
_PUBLISH_MANY = "select headrace.publish_many($1::text, $2::text[], $3::text[]::json[], $4::text[]::json[])"
_WITH_OPTIONS = """select {} from headrace.publish_with_options(
    $1::text, $2::text[], $3::text[]::json[], $4::text[]::json[], $5::text::json)"""

# The public functions choose by the rights of the caller. A database of the owner calls directly what they would choose.
# These in turn call the functions of the stream, by a text that the server plans for each call. For a few streams that a
# process publishes to often, their own functions are called, see `direct_statements`.
_PUBLISH_PLAIN = "select headrace_internal.publish_message($1, $2, $3::text::json, $4::text::json)"
_PUBLISH_MANY_PLAIN = "select headrace_internal.publish_messages($1, $2, $3::text[]::json[], $4::text[]::json[])"


# The server reads its catalogs and compiles its functions for the first publish of a connection, which takes some
# milliseconds. This one has no messages, and is rolled back, since it would notify listeners.
_PUBLISH_NOTHING = """
    begin; select headrace_internal.publish_messages(name, '{}', '{}') from headrace_internal.streams
        where full_until is null order by id limit 1; rollback"""


async def warm_up(database: Database) -> None:
    """Have a connection ready, on which the first `publish` of this process takes hardly longer than others."""
    if database.owns and not database.pooled:
        async with database.connections.connection() as connection:
            with suppress(asyncpg.PostgresError):  # then `publish` says so
                await connection.execute(_PUBLISH_NOTHING)


@recorded(published)
async def publish(
    executor: Executor, stream: str, key: str, data: str, headers: str | None = None, options: PublishOptions = PLAIN
) -> int | None:
    """Append one message. `data` and `headers` are JSON text.

    Returns:
        Its seq. If it was published before, or one of its unique key is pending, the seq of that message. None if
        it is scheduled for later.

    Raises:
        UnknownStream, InvalidInput, StreamFull.
    """
    headers, options = options.in_headers(headers)
    if (text := encoded(options)) is not None:
        return await executor.fetchval(  # type: ignore[no-any-return]
            _WITH_OPTIONS.format("seq"), stream, [key], [data], None if headers is None else [headers], text
        )
    if isinstance(executor, Database) and executor.owns:
        return await _directly(executor, stream, False, key, data, headers)  # type: ignore[no-any-return]
    return await executor.fetchval(_PUBLISH, stream, key, data, headers)  # type: ignore[no-any-return]


async def _publish_many(
    executor: Executor,
    stream: str,
    keys: Sequence[str],
    data: Sequence[str],
    headers: Sequence[str | None] | None = None,
    options: PublishOptions | Sequence[PublishOptions] = PLAIN,
) -> int:
    """Append messages in their order, see `publish`. The lists are parallel, and `options` are for all or for each.

    Returns:
        How many were published or scheduled. Messages with a known id or the unique key of a pending message, or that
        `dedupe` found unchanged, don't count.

    It is all or nothing only if `executor` is inside a transaction, or if there is one chunk, see `chunks`.
    """
    published = 0
    headers, options = _in_headers(len(keys), headers, options)
    if encoded(options) is not None:
        # One statement takes its ids and unique keys in their order, so that publishers don't deadlock. Only very large
        # data is cut.
        for start, end in chunks(data, max_messages=len(data)):
            part = options if isinstance(options, PublishOptions) else options[start:end]
            messages = (keys[start:end], data[start:end], _some(headers, start, end), encoded(part))
            published += await executor.fetchval(_WITH_OPTIONS.format("published"), stream, *messages)
        return published
    for start, end in chunks(data):
        arguments = (keys[start:end], data[start:end], _some(headers, start, end))
        if isinstance(executor, Database) and executor.owns:
            published += await _directly(executor, stream, True, *arguments)
        else:
            published += await executor.fetchval(_PUBLISH_MANY, stream, *arguments)
    return published


publish_many = recorded(published)(_publish_many)


def _in_headers(
    count: int, headers: Sequence[str | None] | None, options: PublishOptions | Sequence[PublishOptions]
) -> tuple[Sequence[str | None] | None, PublishOptions | Sequence[PublishOptions]]:
    """Move the times to live into the headers."""
    if options is PLAIN:
        return headers, options
    each = [options] * count if isinstance(options, PublishOptions) else options
    if all(one.expires_in is None for one in each):
        return headers, options
    moved = [one.in_headers(head) for one, head in zip(each, headers or [None] * count, strict=True)]
    return [head for head, _ in moved], [rest for _, rest in moved]


async def _directly(database: Database, stream: str, many: bool, *arguments: Any) -> Any:
    """Call the stream's own function if it was published to before. If that is missing, as after a restore of an older
    schema or the deletion of the stream, or may not be called, nothing was done, and the function for all streams decides.
    If that succeeds, it is called from then on.
    """
    direct, general = database.direct_statements, _PUBLISH_MANY_PLAIN if many else _PUBLISH_PLAIN
    if (statements := direct.get(stream)) is not None:
        statement, values = statements.for_many(*arguments) if many else (statements.one, arguments)
        try:
            return await database.fetchval(statement, *values)
        except HeadraceError as error:
            if not isinstance(error.__cause__, (asyncpg.UndefinedFunctionError, asyncpg.InsufficientPrivilegeError)):
                raise
            direct.pop(stream, None)
            result = await database.fetchval(general, stream, *arguments)
            direct[stream] = None
            return result
    result = await database.fetchval(general, stream, *arguments)
    if stream not in direct:
        if len(direct) >= MAX_STREAMS:
            direct.clear()  # when they go round more streams than that, hardly any is found here
        direct[stream] = DirectStatements.of(stream)
    return result


def _some(values: Sequence[T | None] | None, start: int, end: int) -> Sequence[T | None] | None:
    """The slice, or None if it has only None."""
    if values is None:
        return None
    part = values[start:end]
    return part if part.count(None) < len(part) else None


@recorded(published)
async def publish_all(
    database: Database,
    stream: str,
    keys: Sequence[str],
    data: Sequence[str],
    headers: Sequence[str | None] | None = None,
    options: PublishOptions | Sequence[PublishOptions] = PLAIN,
) -> int:
    """As `publish_many`, but all or nothing."""
    if len(list(islice(chunks(data), 2))) <= 1:
        return await _publish_many(database, stream, keys, data, headers, options)

    async def publish() -> int:
        async with database.transaction() as connection:
            return await _publish_many(connection, stream, keys, data, headers, options)

    return await with_repeat(publish)


class StreamMessages(NamedTuple):
    """Messages for one stream, as the arguments of `publish_many`."""

    stream: str
    keys: Sequence[str]
    data: Sequence[str]
    headers: Sequence[str | None] | None = None
    options: PublishOptions | Sequence[PublishOptions] = PLAIN


async def publish_to_streams(database: Database, messages: Sequence[StreamMessages]) -> list[int]:
    """Publish to several streams, all or nothing. Returns for each stream what `publish_many` returns, and raises as it does.

    The streams have the same order in all calls, so that two calls don't wait for each other.
    """

    async def publish() -> list[int]:
        async with database.transaction() as connection:
            return [await publish_many(connection, *one) for one in messages]

    return await with_repeat(publish)


def chunks(
    data: Sequence[str], *, max_messages: int = CHUNK_MESSAGES, max_characters: int = CHUNK_CHARACTERS
) -> Iterator[tuple[int, int]]:
    """The bounds of the slices in which messages are sent."""
    if 0 < len(data) <= max_messages and sum(map(len, data)) <= max_characters:
        yield 0, len(data)
        return
    start = size = 0
    for place, text in enumerate(data):
        if place > start and (place - start >= max_messages or size + len(text) > max_characters):
            yield start, place
            start, size = place, 0
        size += len(text)
    if start < len(data):
        yield start, len(data)


STAGED_TIMEOUT = 600.0
"""Seconds within which staged messages are published. A million take some seconds, which is longer than other statements
may take on a busy server."""


async def publish_staged(connection: Any, stream: str, write: str, parts: str) -> int:
    """Publish what tasks have staged for a write, in the transaction of the caller. Returns the number of messages.

    Args:
        connection: the asyncpg connection of an open transaction.
        parts: a JSON list of the attempts that count. See `sql/functions/messages/writes.sql`.

    Raises `StagedRowsGone` if some are not there any more.
    """
    sql = "select headrace_internal.publish_staged($1, $2, $3::text::json)"
    found: int = await connection.fetchval(sql, stream, write, parts, timeout=STAGED_TIMEOUT)
    return found


async def discard_staged(executor: Executor, stream: str, write: str) -> None:
    """Delete what was staged for a write, unless it was published."""
    await executor.fetchval("select headrace_internal.abort_write($1, $2, 0)::text", stream, write)
