"""Acks that commit together with a handler's effects; see `sql/functions/transactions.sql`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID, uuid4

from headrace.model.errors import LeaseLost
from headrace.store.database import Executor
from headrace.store.translate import first_line, sqlstate

Status = Literal["committed", "aborted", "in progress", "unknown"]

# With all types said, and a plain number as the answer, since not every driver asks the server for types or knows xid8.
_ACK = """select headrace.ack($1::int, $2::bigint[], $3::bigint[], coalesce($4::timestamptz, clock_timestamp()), $5::uuid)::text::bigint"""


async def ack(
    executor: Executor, consumer: int, leases: list[int], seqs: list[int], *,
    now: datetime | None = None, timeline: UUID | None = None,
) -> int:  # fmt: skip
    """Ack messages in the transaction that `executor` is in, as the last thing before its COMMIT. The lists run in parallel.

    From here until the COMMIT the server waits 5 seconds at most. Acking does not end a lease: once all its messages are done, it
    is settled like any other, and what was acked here may be acked there once more.

    Args:
        now: the time, for tests; the server's clock otherwise.
        timeline: `Batch.timeline` of the leases, or None to leave that open. In another one they are lost.

    Returns:
        The transaction's id, for `transaction_status`.

    Raises:
        LeaseLost: of at least one message, or it has been acked before; the transaction can only be rolled back.
    """
    try:
        xid: int = await executor.fetchval(_ACK, consumer, leases, seqs, now, timeline)
    except Exception as error:  # of whichever driver
        if sqlstate(error) == "HR007":
            raise LeaseLost(first_line(error)) from error
        raise
    return xid


class Acks(NamedTuple):
    """Messages that a transaction acked; the lists run in parallel."""

    consumer: int
    leases: list[int]
    seqs: list[int]


class Witness(NamedTuple):
    """What `leave_witness` says of a transaction that has written something.

    Attributes:
        xid: the transaction's id.
        nonce: a number that no other transaction has.
        at: when the witness was left, by the server's clock; None when the transaction could not leave one.
        timeline: the identity of the timeline then, as `Batch.timeline` has it.
    """

    xid: int
    nonce: UUID
    at: datetime | None
    timeline: UUID | None


async def leave_witness(executor: Executor) -> Witness | None:
    """As the last thing before a COMMIT, leave a row that tells later whether it happened. None when nothing was written.

    Also raises when a statement has failed, and the failure was caught: COMMIT would then roll back without a word.
    """
    nonce = uuid4()
    row = await executor.fetchrow("select xid, at, timeline from headrace.leave_witness($1)", nonce)
    return None if row["xid"] is None else Witness(row["xid"], nonce, row["at"], row["timeline"])


class Forgotten(NamedTuple):
    """Up to where witnesses were removed, and in which timeline; `more`: there may be more to remove now."""

    floor: int = 0
    timeline: UUID | None = None
    more: bool = True


async def forget_commits(executor: Executor, last: Forgotten, *, now: datetime | None = None) -> Forgotten:
    """Remove witnesses that nobody can still ask for, from where the last call ended."""
    row = await executor.fetchrow(
        "select floor, timeline, more from headrace.forget_commits($1, $2, coalesce($3, clock_timestamp()))",
        last.floor, last.timeline, now,
    )  # fmt: skip
    return Forgotten(*row)


async def transaction_status(
    executor: Executor, xid: int, *, acks: Acks | None = None, witness: Witness | None = None
) -> Status:
    """What became of a transaction whose COMMIT was not answered; ask on another connection.

    "aborted" is said only of one that can't commit any more, and "in progress" while that is open: ask again then. It is said, too,
    of a transaction so old that the server has forgotten it, which takes days; then its lease has the last word. "unknown" is said only
    of one whose witness has been removed meanwhile, after `headrace.witnesses_kept()`, on a server whose history was rewound since.

    Args:
        acks: what it acked, if anything. A server that crashed may give the id of a transaction that had written nothing to disk to
            another one; while the leases are there, their acks tell the two apart.
        witness: what it left, if it did, for the same reason.

    Raises `StoreUnavailable`.
    """
    status: Status | None
    if witness is not None and witness.at is not None:
        status = await executor.fetchval("select headrace.commit_status($1::bigint, $2, $3, $4)", *witness)
        return status or "unknown"
    if acks is None:
        status = await executor.fetchval("select headrace.transaction_status($1::bigint)", xid)
    else:
        status = await executor.fetchval(
            "select headrace.ack_status($1::int, $2::bigint[], $3::bigint[], $4::bigint)", *acks, xid
        )
    return status or "in progress"
