"""Acks that commit together with a handler's effects; see `sql/functions/transactions.sql`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple

from headrace.model.errors import LeaseLost
from headrace.store.database import Executor
from headrace.store.translate import first_line, sqlstate

Status = Literal["committed", "aborted", "in progress"]

# With all types said, and a plain number as the answer, since not every driver asks the server for types or knows xid8.
_ACK = """select headrace.ack($1::int, $2::bigint[], $3::bigint[], coalesce($4::timestamptz, clock_timestamp()))::text::bigint"""


async def ack(
    executor: Executor, consumer: int, leases: list[int], seqs: list[int], *, now: datetime | None = None
) -> int:
    """Ack messages in the transaction that `executor` is in, as the last thing before its COMMIT. The lists run in parallel.

    From here until the COMMIT the server waits 5 seconds at most. Acking does not end a lease: once all its messages are done, it
    is settled like any other, and what was acked here may be acked there once more.

    Args:
        now: the time, for tests; the server's clock otherwise.

    Returns:
        The transaction's id, for `transaction_status`.

    Raises:
        LeaseLost: of at least one message, or it has been acked before; the transaction can only be rolled back.
    """
    try:
        xid: int = await executor.fetchval(_ACK, consumer, leases, seqs, now)
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


async def transaction_status(executor: Executor, xid: int, *, acks: Acks | None = None) -> Status:
    """What became of a transaction whose COMMIT was not answered; ask on another connection.

    "aborted" is said only of one that can't commit any more, and "in progress" while that is open: ask again then. It is said, too,
    of a transaction so old that the server has forgotten it, which takes days; then its lease has the last word.

    Args:
        acks: what it acked, if anything. A server that crashed may give the id of a transaction that had written nothing to disk to
            another one; while the leases are there, their acks tell the two apart.

    Raises `StoreUnavailable`.
    """
    status: Status | None
    if acks is None:
        status = await executor.fetchval("select headrace.transaction_status($1::bigint)", xid)
    else:
        status = await executor.fetchval(
            "select headrace.ack_status($1::int, $2::bigint[], $3::bigint[], $4::bigint)", *acks, xid
        )
    return status or "in progress"
