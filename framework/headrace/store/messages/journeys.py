"""journeys: where a message is in each consumer of its stream."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from headrace.model.records import Erasure, StoredMessage
from headrace.model.watching.completions import Completion
from headrace.store.database.database import Executor
from headrace.store.messages.peek import stored


class MessageBySeq(msgspec.Struct, frozen=True, kw_only=True):
    """A message, or what is left of it.

    Attributes:
        message: None if it is not in the stream.
        erased: what is left of an erased one.
        at: the database's time.
    """

    message: StoredMessage | None
    erased: Erasure | None
    at: datetime


class ConsumerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message is in a consumer, as `headrace_internal.journey` finds it.

    Attributes:
        place: lease, ack, parked, letter, tail, replay, ahead, hole or passed.
        wanted: whether it matches the consumer's filters and condition. None if that was not evaluated.
        by_key: whether its key matches the filters.
        since: when the lease was given, or when the dead letter died.
        until: when the lease ends, or when a parked message is due. None for now.
        owner: of the lease.
        error, error_type, failed_at, failed_by: of the last attempt of a parked message, or of a dead letter.
        head, head_place: the message of the same key that it waits for, and its place.
        process, host, pid: of the process whose heartbeat names the owner.
        filtered: whether the consumer has filters or a condition.
        began_at: when the consumer was created.
        gap_lower, gap_upper, gap_at: the gap that has the message: the last one that retention left to the consumer.
        completed: its newest completions, if the consumer keeps a history.
        requested_at, requested_by: of its cancellation.
        outcome: of its cancellation: cancelled, or finished if the handler was done before. None while it is pending.
        was_at_work: whether it was leased when it was cancelled.
    """

    consumer_id: UUID
    consumer: str
    place: str
    wanted: bool | None
    by_key: bool | None
    attempts: int | None
    since: datetime | None
    until: datetime | None
    owner: UUID | None
    blocks: bool | None
    death: str | None
    error: str | None
    error_type: str | None
    failed_at: datetime | None
    failed_by: str | None
    head: int | None
    head_place: str | None
    process: UUID | None
    host: str | None
    pid: int | None
    position: int
    paused_until: datetime | None
    filtered: bool
    deliver_policy: str
    start_seq: int | None
    start_time: datetime | None
    began_at: datetime
    gap_lower: int | None
    gap_upper: int | None
    gap_at: datetime | None
    completed: list[Completion]
    requested_at: datetime | None
    requested_by: str | None
    outcome: str | None
    was_at_work: bool


async def message_by_seq(
    executor: Executor, stream: str, seq: int, *, raw: bool = False, now: datetime | None = None
) -> MessageBySeq:
    """The message of a seq. `raw` as for `messages`. Raises `UnknownStream`."""
    row = await executor.fetchrow(
        "select * from headrace_internal.message_by_seq($1, $2, coalesce($3, clock_timestamp()))", stream, seq, now
    )
    columns = {name: row[name] for name in ("seq", "key", "data", "headers", "created_at")}
    erased = None
    if row["erased_at"] is not None:
        erased = Erasure(seq=seq, erased_at=row["erased_at"], erased_by=row["erased_by"], reason=row["erased_for"])
    return MessageBySeq(
        message=None if row["seq"] is None else StoredMessage(**stored(columns, raw)), erased=erased, at=row["at"]
    )


async def journey(
    executor: Executor,
    stream: str,
    seq: int,
    key: str | None,
    *,
    limit: int,
    after: str | None = None,
    now: datetime | None = None,
) -> list[ConsumerPlace]:
    """Where a message is in the first `limit` consumers after that of the name `after`, by name.

    Args:
        key: of the message. None if it is not in the stream. Then only consumers are returned that have it still, or
            have missed it.

    Raises:
        UnknownStream.
    """
    arguments = (stream, seq, key, limit, after, now)
    rows: list[Any] = await executor.fetch(
        """select j.*, (j.place).*, (j.cancellation).requested_at, (j.cancellation).requested_by, (j.cancellation).outcome,
                  (j.cancellation).lease_id is not null as was_at_work
           from headrace_internal.journey($1, $2, $3, $4, $5, coalesce($6, clock_timestamp())) as j""",
        *arguments,
    )
    return [_place(row) for row in rows]


def _place(row: Any) -> ConsumerPlace:
    # The composite `place` stands before the columns that it consists of, one of which has the same name.
    columns = dict(zip(row.keys(), row.values(), strict=True))
    columns["completed"] = msgspec.json.decode(columns["completed"] or "[]", type=list[Completion])
    return ConsumerPlace(**{name: columns[name] for name in ConsumerPlace.__struct_fields__})
