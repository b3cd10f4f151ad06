"""lease: take a batch of messages, for a time; extend; say that one waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from asyncpg import Range

from headrace.model.records import Batch
from headrace.store.database import Executor, within
from headrace.store.missing import again

# Bounds of one call.
MAX_LOOK = 2_000
MAX_BYTES = 16_000_000

# By name, so that a column more in a newer schema does no harm.
_LEASE = """select lease_id, seqs, attempts, keys, data, headers, created_at, looked_at, more, due_in, version, crashes, lease_ids,
                   history, timeline, coalesce(busy, false) as busy
            from headrace.lease($1, $2, $3, $4, $5, coalesce($6, clock_timestamp()), $7, $8, $9, $10)"""


async def lease(
    executor: Executor,
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
) -> Batch:
    """Lease up to `limit` messages to `owner` for the consumer's `ack_wait`.

    Args:
        consumer: the consumer's id, from `declare_consumer`.
        owner: who works on them. An owner does the messages of one key in turn, so he may get many of one key.
        look: how many messages may be looked at to find so many.
        max_bytes: no more is added to a batch whose payloads have passed this size, as they are handed out.
        now: the time, for tests; the server's clock otherwise.
        judging: seconds that the call may take, for consumers with a condition that may take forever.
        shares: deal the messages out to so many others than `owner`, who have nothing else and take so many each: `limit` is the sum.
            `Batch.lease_ids` has a lease for each, in their order, as far as the messages go. Of an ordered consumer nobody gets
            a second message of a key, nor one of a key that another has.
        known: from these seqs to those, inclusive, the caller has the messages already: key, data, headers and time are left out,
            None in the lists of the batch.
        patient: whether to wait for one's turn though many others do; see `Batch.busy`.
        history: `Batch.history` of where it has them from. In any other history these seqs may be other messages, so all is brought.

    Raises:
        FilterTooSlow: it took longer than that. Nothing was leased.
        UnknownConsumer: it was deleted.
        StoreUnavailable: nothing is lost by it; what was leased, if anything, comes again.
    """
    ranges = None if not known else [Range(first, last + 1) for first, last in known]
    arguments = (consumer, owner, limit, look, max_bytes, now, shares, ranges, history, patient)
    row = await _lease(executor, judging, arguments)
    if row["timeline"] is None and row["more"]:  # the database has just crashed, failed over or been restored
        await executor.fetchval("select headrace.begin_timeline()")
        row = await _lease(executor, judging, arguments)
    if row[0] is not None:
        return Batch(*row)
    return Batch(
        None, [], None, [], [], [], [], row["looked_at"], row["more"], row["due_in"], row["version"],
        history=row["history"], timeline=row["timeline"], busy=row["busy"],
    )  # fmt: skip


async def _lease(executor: Executor, judging: float | None, arguments: tuple[Any, ...]) -> Any:
    if judging is None:
        return await executor.fetchrow(_LEASE, *arguments)
    return await again(lambda: _lease_within(executor, judging, arguments))


async def _lease_within(executor: Executor, judging: float, arguments: tuple[Any, ...]) -> Any:
    async with within(executor, judging) as connection:
        return await connection.fetchrow(_LEASE, *arguments)


async def extend_leases(
    executor: Executor, consumer: int, leases: Sequence[int], *, now: datetime | None = None
) -> list[int]:
    """Extend these leases by `ack_wait` from now. Returns the ids of those that still exist."""
    alive: list[int] = await executor.fetchval(
        "select headrace.extend_leases($1, $2, coalesce($3, clock_timestamp()))", consumer, leases, now
    )
    return alive


async def reclaim(executor: Executor, consumer: int, owner: UUID, known: list[int]) -> int:
    """Give back what `owner` leased without knowing it, because the answer was lost: all but the leases in `known`.

    Returns how many messages; their attempts don't count.
    """
    count: int = await executor.fetchval("select headrace.reclaim($1, $2, $3)", consumer, owner, known)
    return count


async def mark_started(executor: Executor, consumer: int, leases: list[int], seqs: list[int]) -> list[int]:
    """Note that these messages are being started, of which `Batch.crashes` says that they have crashed.

    Of those that are not noted, an expiry counts neither the attempt nor another crash. The lists run in parallel.

    Returns:
        Those of the leases that are lost; the messages may be somebody else's by now.
    """
    lost: list[int] = await executor.fetchval("select headrace.mark_started($1, $2, $3)", consumer, leases, seqs)
    return lost


async def wait(executor: Executor, consumers: int | Sequence[int], seconds: float) -> None:
    """Subscribe consumers to the notifications of publishers for so many seconds."""
    ids = [consumers] if isinstance(consumers, int) else list(consumers)
    await executor.fetchval("select headrace.wait_for($1, make_interval(secs => $2))", ids, seconds)


async def without_subscription(executor: Executor, consumers: Sequence[int]) -> set[int]:
    """The consumers among these for which no process is subscribed. Raises `StoreUnavailable`."""
    return set(await executor.fetchval("select headrace.without_subscription($1)", list(consumers)))
