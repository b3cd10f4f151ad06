"""captures: who captures a table's changes, how far he is, and what he appends. The steps are told in `sql/functions/captures.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from headrace.model.capture import CaptureFacts, FailedChange
from headrace.model.errors import UnknownSource
from headrace.store.connection import ending_when_idle
from headrace.store.database import Database, Executor
from headrace.store.missing import again
from headrace.store.publish import chunks


class CaptureToDo(msgspec.Struct, frozen=True, kw_only=True):
    """A source that captures tables. `number` is its in the database; `settings` are with their secrets; `free`: nobody captures it."""

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
    """How far a capture is: everything that was committed up to `position`, a WAL location as text, is in its stream."""

    position: str
    captured: int
    system_id: str
    timeline: int


class ChunkDone(msgspec.Struct, frozen=True, kw_only=True):
    """What appended messages hold of a backfill.

    Attributes:
        id: its number.
        place: the key of the last row that was read; None if there was none.
        read: rows that were read ...
        published: ... and became messages.
        done: whether there are no more.
    """

    id: int
    place: list[Any] | None
    read: int
    published: int
    done: bool


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A change that could not be made into a message: its key if it has one, its data as JSON text, and why.

    Attributes:
        place: how many of the messages that are appended with it come before it.
        overtaken: whether one that comes after it has its key.
    """

    key: str | None
    data: str
    error: str
    place: int = 0
    overtaken: bool = False


class FailureToRetry(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that is to be tried again: `data` is the change as JSON text, before it was transformed."""

    id: int
    key: str | None
    data: str
    failed_at: datetime


class Captured(msgspec.Struct, kw_only=True):
    """What is to be appended in one step. `keys` and `data` run in parallel.

    Attributes:
        position: where everything is appended that was committed up to there; None within a transaction that goes on.
        captured: changes since ever, told with the position.
        after: the position of the append before, told with the position. The append is refused if the database has another one.
    """

    keys: list[str] = []
    data: list[str] = []
    position: str | None = None
    after: str | None = None
    captured: int = 0
    chunks: list[ChunkDone] = []
    failures: list[Failed] = []
    retried: list[int] = []


async def captures_to_do(executor: Executor, *, now: datetime | None = None) -> list[CaptureToDo]:
    """All sources that capture tables, by name."""
    rows = await executor.fetch("select * from headrace.captures_to_do(coalesce($1, clock_timestamp()))", now)
    return [
        CaptureToDo(
            number=row["source_id"], id=str(row["uid"]), settings=msgspec.json.decode(row["settings"]),
            holder=None if row["holder"] is None else UUID(str(row["holder"])),
            **{name: row[name] for name in ("name", "stream", "updated_at", "paused", "free")},
        )
        for row in rows
    ]  # fmt: skip


async def take_capture(
    executor: Executor, number: int, holder: UUID, seconds: float, *, now: datetime | None = None
) -> int | None:
    """Begin a tenure of so many seconds. Returns its epoch, or None when somebody else holds it, or it is paused or gone."""
    epoch: int | None = await executor.fetchval(
        "select headrace.take_capture($1, $2, $3, coalesce($4, clock_timestamp()))",
        number, holder, timedelta(seconds=seconds), now,
    )  # fmt: skip
    return epoch


async def renew_capture(
    executor: Executor, number: int, epoch: int, seconds: float, *, now: datetime | None = None
) -> bool:
    """Hold it for so many seconds from now. Returns whether it is still held under this epoch."""
    held: bool = await executor.fetchval(
        "select headrace.renew_capture($1, $2, $3, coalesce($4, clock_timestamp()))",
        number, epoch, timedelta(seconds=seconds), now,
    )  # fmt: skip
    return held


async def reopen_capture(executor: Executor, number: int, epoch: int) -> int | None:
    """Go on with a tenure under another epoch, once no append under the old one is under way. Returns it, or None when the tenure is over."""
    reopened: int | None = await executor.fetchval("select headrace.reopen_capture($1, $2)", number, epoch)
    return reopened


async def release_capture(executor: Executor, number: int, epoch: int) -> None:
    """End the tenure, so that others needn't wait for it to run out."""
    await executor.fetchval("select headrace.release_capture($1, $2)", number, epoch)


async def tell_capture(
    executor: Executor, number: int, epoch: int, state: str, reason: str | None = None, mend: str | None = None,
    facts: CaptureFacts | None = None, *, now: datetime | None = None,
) -> bool:  # fmt: skip
    """Tell how it goes; without facts the last ones stay. Returns whether it is still held under this epoch."""
    told: bool = await executor.fetchval(
        "select headrace.tell_capture($1, $2, $3, $4, $5, $6, coalesce($7, clock_timestamp()))",
        number, epoch, state, reason, mend, None if facts is None else msgspec.json.encode(facts).decode(), now,
    )  # fmt: skip
    return told


async def capture_position(executor: Executor, number: int) -> CapturePosition | None:
    """Where to go on from; None before the first position."""
    row = await executor.fetchrow(
        "select position::text as position, captured, system_id, timeline from headrace.capture_position($1)", number
    )
    return None if row is None else CapturePosition(**dict(row))


async def begin_capture(
    executor: Executor, number: int, epoch: int, position: str, system_id: str, timeline: int
) -> None:
    """Go on from a position of a server: at first, or anew. Raises `LeaseLost`."""
    await executor.fetchval(
        "select headrace.begin_capture($1, $2, $3::text::pg_lsn, $4, $5)", number, epoch, position, system_id, timeline
    )


async def append_captured(executor: Executor, number: int, epoch: int, stream: str, what: Captured) -> None:
    """Append to the stream, all or nothing.

    Args:
        executor: a database; or a connection inside a transaction, in which this is a step.

    Raises:
        LeaseLost: somebody else captures now, or it is paused or removed, or its position is not `what.after`.
        UnknownStream, StreamFull, InvalidData, StoreUnavailable.
    """
    parts = list(chunks(what.data)) or [(0, 0)]
    if len(parts) > 1 and isinstance(executor, Database):
        database = executor

        async def append() -> None:
            async with database.transaction() as connection:
                await _append(connection, number, epoch, stream, what, parts)

        await again(append)
    else:
        await _append(executor, number, epoch, stream, what, parts)


async def _append(
    executor: Executor, number: int, epoch: int, stream: str, what: Captured, parts: Sequence[tuple[int, int]]
) -> None:
    for start, end in parts[:-1]:
        await executor.fetchval(
            "select headrace.append_captured($1, $2, $3, $4, $5)",
            number, epoch, stream, what.keys[start:end], what.data[start:end],
        )  # fmt: skip
    start, end = parts[-1]
    await executor.fetchval(
        "select headrace.append_captured($1, $2, $3, $4, $5, $6::text::pg_lsn, $7, $8, $9, $10, $11::text::pg_lsn)",
        number, epoch, stream, what.keys[start:end], what.data[start:end], what.position, what.captured,
        _json(what.chunks), _json(what.failures), what.retried or None, what.after,
    )  # fmt: skip


def _json(what: Sequence[Any]) -> str | None:
    return msgspec.json.encode(what).decode() if what else None


async def pause_capture(executor: Executor, id: str, *, paused: bool) -> None:  # noqa: A002 - the record's word
    """Have nobody capture it from now on, or let it go on; by the source's id. Raises `UnknownSource`."""
    if not await executor.fetchval("select headrace.pause_capture($1, $2)", id, paused):
        raise UnknownSource("The source no longer exists, or captures nothing.")


async def interrupt_capture(executor: Executor, id: str) -> None:  # noqa: A002
    """End whose tenure it is, by the source's id: who captures it next goes by its settings as they are now."""
    await executor.fetchval("select headrace.interrupt_capture($1)", id)


async def reset_capture(executor: Executor, id: str, *, now: datetime | None = None) -> None:  # noqa: A002
    """Have it begin anew, by the source's id: its position is forgotten, its backfills end. Raises `UnknownSource`.

    What was committed since that position, and before somebody captures it again, is missing: only a fresh backfill makes up for it.
    """
    if not await executor.fetchval("select headrace.reset_capture($1, coalesce($2, clock_timestamp()))", id, now):
        raise UnknownSource("The source no longer exists, or captures nothing.")


async def capture_failures(executor: Executor, id: str, *, above: int = 0, limit: int = 100) -> list[FailedChange]:  # noqa: A002
    """Changes that could not be made into messages, the oldest first; by the source's id."""
    rows = await executor.fetch("select * from headrace.capture_failures($1, $2, $3)", id, above, limit)
    return [FailedChange(**{**dict(row), "data": msgspec.json.decode(row["data"])}) for row in rows]


async def retry_capture_failures(executor: Executor, id: str, ids: Sequence[int] | None = None) -> int:  # noqa: A002
    """Have them tried again, all or these. Returns how many."""
    count: int = await executor.fetchval("select headrace.retry_capture_failures($1, $2)", id, ids)
    return count


async def drop_capture_failures(executor: Executor, id: str, ids: Sequence[int] | None = None) -> int:  # noqa: A002
    """Forget them, all or these. Returns how many."""
    count: int = await executor.fetchval("select headrace.drop_capture_failures($1, $2)", id, ids)
    return count


async def failures_to_retry(executor: Executor, number: int, limit: int = 100) -> list[FailureToRetry]:
    """Those to be tried again now."""
    rows = await executor.fetch("select * from headrace.capture_failures_to_retry($1, $2)", number, limit)
    return [FailureToRetry(**dict(row)) for row in rows]


async def captured_since(executor: Executor, stream: str, keys: Sequence[tuple[str, datetime]]) -> set[str]:
    """Which of these keys a stream with `one_message_per_key` has a message of that was published after the given time."""
    rows = await executor.fetch(
        "select key from headrace.captured_since($1, $2, $3) as key",
        stream, [key for key, _ in keys], [at for _, at in keys],
    )  # fmt: skip
    return {row["key"] for row in rows}


async def failed_again(executor: Executor, number: int, ids: Sequence[int], errors: Sequence[str]) -> None:
    """They failed once more."""
    await executor.fetchval("select headrace.capture_failed_again($1, $2, $3)", number, ids, errors)


async def end_when_idle(connection: Any, seconds: float) -> None:
    """Have the server end this transaction when nothing is said in it for so long: of a process that froze, others needn't wait for it."""
    await connection.execute(ending_when_idle(seconds))


async def captured_rows(executor: Executor, stream: str, keys: Sequence[str]) -> dict[str, str]:
    """The data of these keys in a stream with `one_message_per_key`, as far as they are there."""
    rows = await executor.fetch("select key, data from headrace.captured_rows($1, $2)", stream, keys)
    return {row["key"]: row["data"] for row in rows}


async def empty_captured(
    executor: Executor, number: int, epoch: int, stream: str, schema: str, relation: str, metadata: str
) -> int:
    """Put a tombstone in the place of each row that a stream has of a table. Returns how many. Raises `LeaseLost`."""
    count: int = await executor.fetchval(
        "select headrace.empty_captured($1, $2, $3, $4, $5, $6)", number, epoch, stream, schema, relation, metadata
    )
    return count
