"""captures: which process captures a source, its position, and what it appends. `sql/functions/capture/captures.sql`
describes the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from headrace.model.capture import CaptureFacts, Differences
from headrace.model.errors import UnknownSource
from headrace.store.connections.statements import ending_when_idle
from headrace.store.database.database import Database, Executor
from headrace.store.database.direct_statements import SEPARATOR
from headrace.store.database.missing_objects import with_repeat
from headrace.store.messages.publish import chunks

CHUNK_MESSAGES = 2_500
"""Most messages of a statement."""

CHUNK_CHARACTERS = 1_000_000
"""Most characters of the messages of a statement, unless a single one is longer. The server checks messages together up to a size, see
`begin_checked` in `sql/functions/messages/checks.sql`.
"""


class CapturedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a source.

    Attributes:
        fingerprint: what it consisted of when it was last looked at, as JSON text. None if that was never stored.
        unfinished: whether the last requested resync is under way.
        failure: why it failed. None if it did not, or the table was read since.
    """

    fingerprint: str | None
    unfinished: bool
    failure: str | None


class CaptureToDo(msgspec.Struct, frozen=True, kw_only=True):
    """A source that captures tables. `number` is its number in the database. `settings` include secrets.
    `free` means that no process captures it.
    """

    number: int
    id: str
    name: str
    stream: str
    settings: dict[str, Any]
    updated_at: datetime
    paused: bool
    free: bool
    holder: UUID | None


class CapturePosition(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a capture. Everything that was committed up to `position`, a WAL location as text, is in
    its stream.
    """

    position: str
    captured: int
    system_id: str
    timeline: int


class ChunkDone(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a backfill that an append contains.

    Attributes:
        id: the backfill's number.
        place: the key of the last row that was read. None if there was none.
        read: the number of rows that were read.
        published: the number of rows that became messages.
        done: whether there are no more rows.
        differences: what a comparison has found in this part.
    """

    id: int
    place: Any
    read: int
    published: int
    done: bool
    differences: Differences | None = None


class CaptureFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A change that could not be made into a message, with its key if it has one, its data as JSON text, and
    the error.

    Attributes:
        index: how many messages of the same append come before it.
        overtaken: whether a later one of these messages has its key.
    """

    key: str | None
    data: str
    error: str
    index: int = 0
    overtaken: bool = False


class CaptureBatch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The contents of one append. `keys` and `data` are parallel lists.

    Attributes:
        position: everything that was committed up to here is appended. None inside a transaction that continues.
        captured: the total number of captured changes. Set together with the position.
        after: the position of the previous append. Set together with the position. The append is rejected
            if the database has a different one.
    """

    keys: list[str] = []
    data: list[str] = []
    position: str | None = None
    after: str | None = None
    captured: int = 0
    chunks: list[ChunkDone] = []
    failures: list[CaptureFailure] = []
    retried: list[int] = []

    def progress(self) -> str:
        """All but the messages, as JSON."""
        return msgspec.json.encode(msgspec.structs.replace(self, keys=[], data=[])).decode()


async def captures_to_do(executor: Executor, *, now: datetime | None = None) -> list[CaptureToDo]:
    """All sources that capture tables, by name."""
    rows = await executor.fetch(
        "select * from headrace_internal.sources_to_capture(coalesce($1, clock_timestamp()))", now
    )
    return [
        CaptureToDo(
            number=row["source_id"],
            id=str(row["uid"]),
            settings=msgspec.json.decode(row["settings"]),
            holder=None if row["holder"] is None else UUID(str(row["holder"])),
            **{name: row[name] for name in ("name", "stream", "updated_at", "paused", "free")},
        )
        for row in rows
    ]


async def take_capture(
    executor: Executor, number: int, holder: UUID, seconds: float, *, now: datetime | None = None
) -> int | None:
    """Take the capture lease for `seconds` seconds. Returns its epoch, or None if another process holds it, or
    the source is paused or gone.
    """
    arguments = (number, holder, timedelta(seconds=seconds), now)
    epoch: int | None = await executor.fetchval(
        "select headrace_internal.take_capture($1, $2, $3, coalesce($4, clock_timestamp()))", *arguments
    )
    return epoch


async def renew_capture(
    executor: Executor, number: int, epoch: int, seconds: float, *, now: datetime | None = None
) -> bool:
    """Extend the capture lease to `seconds` seconds from now. Returns whether it is still held under this epoch."""
    arguments = (number, epoch, timedelta(seconds=seconds), now)
    held: bool = await executor.fetchval(
        "select headrace_internal.renew_capture($1, $2, $3, coalesce($4, clock_timestamp()))", *arguments
    )
    return held


async def reopen_capture(executor: Executor, number: int, epoch: int) -> int | None:
    """Continue a capture lease under a new epoch, once no append under the old one is running. Returns the new
    epoch, or None if the lease has ended.
    """
    reopened: int | None = await executor.fetchval("select headrace_internal.reopen_capture($1, $2)", number, epoch)
    return reopened


async def release_capture(executor: Executor, number: int, epoch: int) -> None:
    """Release the capture lease, so that other processes needn't wait until it expires."""
    await executor.fetchval("select headrace_internal.release_capture($1, $2)", number, epoch)


async def report_capture(
    executor: Executor,
    number: int,
    epoch: int,
    state: str,
    reason: str | None = None,
    mend: str | None = None,
    facts: CaptureFacts | None = None,
    *,
    now: datetime | None = None,
) -> bool:
    """Write the state of a capture. Without `facts`, the previous ones remain. Returns whether the lease is
    still held under this epoch.
    """
    encoded_facts = None if facts is None else msgspec.json.encode(facts).decode()
    arguments = (number, epoch, state, reason, mend, encoded_facts, now)
    held: bool = await executor.fetchval(
        "select headrace_internal.report_capture($1, $2, $3, $4, $5, $6, coalesce($7, clock_timestamp()))", *arguments
    )
    return held


async def stop_capture(
    executor: Executor, number: int, epoch: int, reason: str, mend: str | None = None, *, now: datetime | None = None
) -> bool:
    """Stop a capture until it is resumed. Returns whether the lease was still held under this epoch."""
    arguments = (number, epoch, reason, mend, now)
    held: bool = await executor.fetchval(
        "select headrace_internal.stop_capture($1, $2, $3, $4, coalesce($5, clock_timestamp()))", *arguments
    )
    return held


async def capture_position(executor: Executor, number: int) -> CapturePosition | None:
    """The position from which to continue. None before the first position."""
    row = await executor.fetchrow(
        "select position::text as position, captured, system_id, timeline from headrace_internal.capture_position($1)",
        number,
    )
    return None if row is None else CapturePosition(**dict(row))


async def shared_slot_id(executor: Executor, slot: str) -> str:
    """The id of a shared slot, whether it is known or not."""
    return str(await executor.fetchval("select headrace_internal.shared_slot_id($1)", slot))


async def shared_slot_positions(executor: Executor, slot: str) -> list[tuple[str, str]]:
    """The sources of a shared slot that have a position, by name, with their positions as text."""
    rows = await executor.fetch(
        "select name, position::text as position from headrace_internal.shared_slot_positions($1)", slot
    )
    return [(row["name"], row["position"]) for row in rows]


async def begin_capture(
    executor: Executor, number: int, epoch: int, position: str, system_id: str, timeline: int
) -> None:
    """Start from a position of a server, for the first time or again. Raises `LeaseLost`."""
    await executor.fetchval(
        "select headrace_internal.begin_capture($1, $2, $3::text::pg_lsn, $4, $5)",
        number,
        epoch,
        position,
        system_id,
        timeline,
    )


async def captured_tables(executor: Executor, number: int) -> dict[str, CapturedTable]:
    """The stored facts of a source's tables, by their names in its settings."""
    rows = await executor.fetch("select * from headrace_internal.captured_tables($1)", number)
    names = ("fingerprint", "unfinished", "failure")
    return {row["relation"]: CapturedTable(**{name: row[name] for name in names}) for row in rows}


async def record_captured_table(
    executor: Executor, number: int, epoch: int, table: str, fingerprint: str, resync: str | None
) -> None:
    """Store what a table consists of, and the id of the resync that was requested for it, if any. Raises `LeaseLost`."""
    await executor.fetchval(
        "select headrace_internal.record_captured_table($1, $2, $3, $4, $5)", number, epoch, table, fingerprint, resync
    )


async def forget_captured_tables(executor: Executor, number: int, epoch: int, tables: Sequence[str]) -> None:
    """Forget tables that the source's settings no longer name. Raises `LeaseLost`."""
    await executor.fetchval("select headrace_internal.forget_captured_tables($1, $2, $3)", number, epoch, tables)


async def append_captured(executor: Executor, number: int, epoch: int, stream: str, batch: CaptureBatch) -> None:
    """Append to the stream, all or nothing.

    Args:
        executor: a database, or a connection inside a transaction, of which this call is a part.

    Raises:
        LeaseLost: another process captures now, the source is paused or removed, or its position is not
            `batch.after`.
        UnknownStream, StreamFull, InvalidData, StoreUnavailable.
    """
    slices = list(chunks(batch.data, max_messages=CHUNK_MESSAGES, max_characters=CHUNK_CHARACTERS)) or [(0, 0)]
    if len(slices) > 1 and isinstance(executor, Database):
        database = executor

        async def append() -> None:
            async with database.transaction() as connection:
                await _append(connection, number, epoch, stream, batch, slices)

        await with_repeat(append)
    else:
        await _append(executor, number, epoch, stream, batch, slices)


_APPEND = "select headrace_internal.append_captured($1, $2, $3, {}, $6)"
_ARRAYS = "$4, $5"
# The driver takes three times as long to send arrays.
_JOINED = r"string_to_array($4::text, E'\u0001'), string_to_array($5::text, E'\u0001')::json[]"


async def _append(
    executor: Executor, number: int, epoch: int, stream: str, batch: CaptureBatch, slices: Sequence[tuple[int, int]]
) -> None:
    for start, end in slices:
        form, keys, data = _messages(batch.keys[start:end], batch.data[start:end])
        progress = batch.progress() if (start, end) == slices[-1] else None
        await executor.fetchval(_APPEND.format(form), number, epoch, stream, keys, data, progress)


def _messages(keys: Sequence[str], data: Sequence[str]) -> tuple[str, Sequence[str], Sequence[str]]:
    """Return how a statement gets these messages, and the two arguments for it."""
    joined = SEPARATOR.join(keys), SEPARATOR.join(data)
    if any(text.count(SEPARATOR) >= max(len(keys), 1) for text in joined):  # it is in one that is not valid
        return _ARRAYS, keys, data
    return _JOINED, *joined


async def pause_capture(executor: Executor, id: str, *, paused: bool) -> None:  # noqa: A002 - the record's word
    """Pause or continue a capture, by the source's id. While it is paused, no process captures it. Raises
    `UnknownSource`.
    """
    if not await executor.fetchval("select headrace_internal.pause_capture($1, $2)", id, paused):
        raise _captures_nothing()


def _captures_nothing() -> UnknownSource:
    return UnknownSource("The source no longer exists, or captures nothing.")


async def interrupt_capture(executor: Executor, id: str) -> None:  # noqa: A002
    """End the current capture lease, by the source's id. The next process that captures it uses the current
    settings.
    """
    await executor.fetchval("select headrace_internal.interrupt_capture($1)", id)


async def reset_capture(executor: Executor, id: str, *, now: datetime | None = None) -> None:  # noqa: A002
    """Restart a capture from the beginning, by the source's id. Its position is forgotten, and its backfills end.
    Raises `UnknownSource`.

    Changes that were committed after that position and before the capture restarts are missing. Only a new
    backfill replaces them.
    """
    if not await executor.fetchval(
        "select headrace_internal.reset_capture($1, coalesce($2, clock_timestamp()))", id, now
    ):
        raise _captures_nothing()


async def keys_captured_since(executor: Executor, stream: str, keys: Sequence[tuple[str, datetime]]) -> set[str]:
    """Return the keys for which a stream with `one_message_per_key` has a message that was published after the
    given time.
    """
    arguments = (stream, [key for key, _ in keys], [at for _, at in keys])
    rows = await executor.fetch("select key from headrace_internal.keys_published_since($1, $2, $3) as key", *arguments)
    return {row["key"] for row in rows}


async def set_idle_timeout(connection: Any, seconds: float) -> None:
    """Make the server end this transaction when it was idle for `seconds` seconds. Otherwise other processes
    would wait for a frozen one.
    """
    await connection.execute(ending_when_idle(seconds))


async def captured_rows(executor: Executor, stream: str, keys: Sequence[str]) -> dict[str, str]:
    """The data of these keys in a stream with `one_message_per_key`. Keys without a message are left out."""
    rows = await executor.fetch("select key, data from headrace_internal.rows_of_keys($1, $2)", stream, keys)
    return {row["key"]: row["data"] for row in rows}


async def truncate_captured(
    executor: Executor, number: int, epoch: int, stream: str, schema: str, relation: str, metadata: str
) -> int:
    """Replace each row of a table in the stream by a tombstone. Returns how many. Raises `LeaseLost`."""
    count: int = await executor.fetchval(
        "select headrace_internal.publish_truncation($1, $2, $3, $4, $5, $6)",
        number,
        epoch,
        stream,
        schema,
        relation,
        metadata,
    )
    return count
