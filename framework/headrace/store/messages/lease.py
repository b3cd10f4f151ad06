"""lease: lease a batch of messages, extend leases, and subscribe to notifications."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from asyncpg import Range

from headrace.model.clock import Times
from headrace.model.records import Batch
from headrace.model.watching.history_log import leased, recorded
from headrace.store.database.database import Database, Executor
from headrace.store.database.missing_objects import with_repeat
from headrace.store.database.time_limit import within

# Bounds of one call.
MAX_LOOK = 2_000
MAX_BYTES = 16_000_000

# Columns by name, so that a newer schema may have more of them. A function in the FROM clause would have its result copied
# into a table twice.
_LEASE = """select (b).lease_id, (b).seqs, (b).attempts, (b).keys, (b).data, (b).headers, pg_catalog.array_send((b).created_at) as created_at,
                   (b).looked_at, (b).more, (b).due_in, (b).version, (b).crashes, (b).lease_ids, (b).history, (b).timeline,
                   coalesce((b).busy, false) as busy, coalesce($6, statement_timestamp()) as begun_at
            from (select headrace_internal.lease($1, $2, row($3, $4, $5, $11), coalesce($6, clock_timestamp()), $7, $8, $9, $10) as b) as called"""

_CREATED_AT = 6  # its place


@recorded(leased)
async def lease(
    database: Database,
    consumer: int,
    owner: UUID,
    limit: int,
    *,
    look: int = MAX_LOOK,
    max_bytes: int = MAX_BYTES,
    now: datetime | None = None,
    judging: float | None = None,
    shares: Sequence[int] | None = None,
    known: Sequence[tuple[int, int]] | None = None,
    history: UUID | None = None,
    patient: bool = True,
    free_keys: bool = False,
) -> Batch:
    """Lease up to `limit` messages to `owner` for the consumer's `ack_wait`.

    Args:
        consumer: the consumer's id, from `declare_consumer`.
        owner: the process that handles the messages. It handles those of one key in turn, so it may get
            several of one key.
        look: how many messages may be examined to find `limit` of them.
        max_bytes: stop adding messages when the payloads of the batch have passed this size, as text.
        now: the time, for tests. By default the server's clock.
        judging: the timeout in seconds, for consumers with a condition that may be slow.
        shares: divide the messages among this many new owners, each without other leases, instead of
            `owner`. Each number is the size of a share, and `limit` is their sum. `Batch.lease_ids` has a
            lease for each share, in their order, as far as there are messages. For an ordered consumer, no
            share gets two messages of one key, or a key of another share.
        known: ranges of seqs, inclusive, that the caller has cached. Their key, data, headers and time are
            None in the batch.
        patient: wait for the consumer's lock, however many callers do, see `Batch.busy`.
        free_keys: lease only messages of keys that have no message in flight, not even one of `owner`.
        history: `Batch.history` of the cached messages. In another history the seqs may be other messages,
            so everything is returned.

    Raises:
        FilterTooSlow: it took longer than `judging`. Nothing was leased.
        UnknownConsumer: the consumer was deleted.
        StoreUnavailable: no message is lost. Messages that were leased, if any, are delivered again.
    """
    ranges = None if not known else [Range(first, last + 1) for first, last in known]
    arguments = (consumer, owner, limit, look, max_bytes, now, shares, ranges, history, patient, free_keys)
    row = await _lease(database, judging, arguments)
    if row["timeline"] is None and row["more"]:  # the database has just crashed, failed over or been restored
        await database.fetchval("select headrace_internal.begin_timeline()")
        row = await _lease(database, judging, arguments)
    if row[0] is not None:
        values = list(row)
        values[_CREATED_AT] = Times.read(values[_CREATED_AT])
        return Batch(*values)
    nothing: tuple[Any, ...] = (None, [], None, [], [], [], Times([]))
    rest = {name: row[name] for name in ("looked_at", "more", "due_in", "version", "history", "timeline", "busy")}
    return Batch(*nothing, **rest)


def _lease(database: Database, judging: float | None, arguments: tuple[Any, ...]) -> Awaitable[Any]:
    if judging is None:
        return database.fetchrow(_LEASE, *arguments)
    return with_repeat(lambda: _lease_within(database, judging, arguments))


async def _lease_within(database: Database, judging: float, arguments: tuple[Any, ...]) -> Any:
    async with within(database, judging) as connection:
        return await connection.fetchrow(_LEASE, *arguments)


async def extend_leases(
    executor: Executor, consumer: int, leases: Sequence[int], *, now: datetime | None = None
) -> list[int]:
    """Extend these leases to `ack_wait` from now. Returns the ids of those that still exist."""
    alive: list[int] = await executor.fetchval(
        "select headrace_internal.extend_leases($1, $2, coalesce($3, clock_timestamp()))", consumer, leases, now
    )
    return alive


async def reclaim(executor: Executor, consumer: int, owner: UUID, known: list[int]) -> int:
    """Return messages that `owner` leased without knowing it, because the answer was lost: all leases except
    those in `known`.

    Returns how many messages. Their attempts don't count.
    """
    count: int = await executor.fetchval("select headrace_internal.reclaim($1, $2, $3)", consumer, owner, known)
    return count


async def mark_started(executor: Executor, consumer: int, leases: list[int], seqs: list[int]) -> list[int]:
    """Record that the process is starting these messages, for which `Batch.crashes` counts crashes.

    If a lease expires, messages that were not recorded count neither the attempt nor another crash. The
    lists are parallel.

    Returns:
        The leases that are lost. Their messages may be leased to another process by now.
    """
    lost: list[int] = await executor.fetchval(
        "select headrace_internal.mark_started($1, $2, $3)", consumer, leases, seqs
    )
    return lost


async def wait(executor: Executor, consumers: int | Sequence[int], seconds: float) -> None:
    """Subscribe consumers to the notifications of publishers for `seconds` seconds."""
    ids = [consumers] if isinstance(consumers, int) else list(consumers)
    await executor.fetchval("select headrace_internal.subscribe_consumers($1, make_interval(secs => $2))", ids, seconds)


async def without_subscription(executor: Executor, consumers: Sequence[int]) -> set[int]:
    """The consumers among these to which no process is subscribed. Raises `StoreUnavailable`."""
    return set(await executor.fetchval("select headrace_internal.without_subscription($1)", list(consumers)))
