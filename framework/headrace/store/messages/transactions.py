"""Acks that commit together with a handler's effects. See `sql/functions/messages/transactions.sql`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple
from uuid import UUID, uuid4

from headrace.model.errors import LeaseLost
from headrace.store.database.database import Executor
from headrace.store.database.errors import first_line, sqlstate

if TYPE_CHECKING:
    from headrace.store.connections.hold import Hold


class Handled(NamedTuple):
    """How a worker process has handled the messages that it acks, for a consumer that keeps a history.

    Attributes:
        process: the name of the process.
        seconds: how long the handler has taken. None if that was not measured.
    """

    process: str
    seconds: float | None


Status = Literal["committed", "aborted", "in progress", "unknown"]

# With explicit types and a plain number as the result, because not every driver asks the server for
# types or knows xid8.
_ACK_MESSAGES = """select headrace.ack($1::int, $2::bigint[], $3::bigint[], coalesce($4::timestamptz, clock_timestamp()),
                                      $5::uuid{handled})::text::bigint"""
_ACK, _ACK_HANDLED = (
    _ACK_MESSAGES.format(handled=""),
    _ACK_MESSAGES.format(handled=", $6::text, $7::real"),
)


async def ack(
    executor: Executor,
    consumer: int,
    leases: list[int],
    seqs: list[int],
    *,
    now: datetime | None = None,
    history: UUID | None = None,
    handled: Handled | None = None,
) -> int:
    """Ack messages in the transaction of `executor`, as its last statement before the COMMIT. The lists are parallel.

    From here until the COMMIT the server waits 2 seconds at most. Acking does not end a lease. Once all its
    messages are done, the lease is settled like any other, and messages that were acked here may be acked
    again there.

    Args:
        now: the time, for tests. By default the server's clock.
        history: the history in which the leases are known to be held, see `Batch.history`, or None to skip the
            check. In another history they count as lost.
        handled: for a consumer that keeps a history.

    Returns:
        The transaction's id, for `transaction_status`.

    Raises:
        LeaseLost: at least one message is no longer leased, or was acked before. The transaction can only
            be rolled back.
    """
    try:
        statement = _ACK if handled is None else _ACK_HANDLED
        xid: int = await executor.fetchval(statement, consumer, leases, seqs, now, history, *(handled or ()))
    except Exception as error:  # of any driver
        if sqlstate(error) == "HR007":
            raise LeaseLost(first_line(error)) from error
        raise
    return xid


# In a transaction that got its id at its beginning. It returns no rows.
_ACKED = (
    "select where headrace_internal.ack_at_commit($1, $2, $3, coalesce($4, clock_timestamp()), $5, $6{handled}) is null"
)
_ACK_AT_COMMIT, _ACK_HANDLED_AT_COMMIT = _ACKED.format(handled=""), _ACKED.format(handled=", $7, $8")


class Acks(NamedTuple):
    """The messages that a transaction acked. The lists are parallel."""

    consumer: int
    leases: list[int]
    seqs: list[int]


async def ack_and_commit(
    hold: Hold,
    acks: Acks,
    *,
    timeout: float,
    now: datetime | None = None,
    history: UUID | None = None,
    handled: Handled | None = None,
    begin_next: bool = False,
) -> None:
    """Ack messages in the transaction of `hold`, as its last statement, and commit it, in one round trip.

    After an error that is not from the server, `transaction_status` of `Hold.xid` finds out whether it was committed.

    Args:
        hold: a transaction that got its id at its beginning.
        timeout: the timeout for the answer in seconds.
        now, history, handled: see `ack`.
        begin_next: begin the next transaction in the same round trip, see `Hold.run_and_commit`. Then it may also be committed
            after another error of the server than those below.

    Raises:
        LeaseLost: see `ack`.
        TransactionEnded: the transaction is not the one that got the id. Nothing is committed.
    """
    leases, seqs = ",".join(map(str, acks.leases)), ",".join(map(str, acks.seqs))
    acked = (str(acks.consumer), f"{{{leases}}}", f"{{{seqs}}}")
    time, history_text = None if now is None else now.isoformat(), None if history is None else str(history)
    arguments: tuple[str | None, ...] = (*acked, time, history_text, str(hold.xid))
    statement = _ACK_AT_COMMIT
    if handled is not None:
        statement = _ACK_HANDLED_AT_COMMIT
        arguments += (handled.process, None if handled.seconds is None else str(handled.seconds))
    try:
        await hold.run_and_commit(statement, arguments, timeout, begin_next=begin_next)
    except Exception as error:
        if sqlstate(error) == "HR007":
            raise LeaseLost(first_line(error)) from error
        if sqlstate(error) == "25000" and hold.in_transaction:
            raise TransactionEnded from error
        raise


class TransactionEnded(Exception):
    """User code has ended its transaction, and begun another one on the connection."""


class Witness(NamedTuple):
    """The result of `leave_witness` in a transaction that has written something.

    Attributes:
        xid: the transaction's id.
        nonce: a number that no other transaction has.
        at: when the witness was left, by the server's clock. None if the transaction could not leave one.
        timeline: the identity of the history then, as in `Batch.history`.
    """

    xid: int
    nonce: UUID
    at: datetime | None
    timeline: UUID | None


async def leave_witness(executor: Executor) -> Witness | None:
    """Insert a row, as the last statement before a COMMIT, that later shows whether it committed. Returns None
    if nothing was written.

    Also raises if a statement has failed and the error was caught, because COMMIT would then roll back silently.
    """
    nonce = uuid4()
    row = await executor.fetchrow("select xid, at, timeline from headrace_internal.leave_witness($1)", nonce)
    return None if row["xid"] is None else Witness(row["xid"], nonce, row["at"], row["timeline"])


class Forgotten(NamedTuple):
    """The time up to which witnesses were removed, and its timeline. `more` means that there may be more to
    remove now.
    """

    floor: int = 0
    timeline: UUID | None = None
    more: bool = True


async def forget_commits(executor: Executor, last: Forgotten, *, now: datetime | None = None) -> Forgotten:
    """Remove witnesses that are no longer needed, from the end of the last call."""
    arguments = (last.floor, last.timeline, now)
    row = await executor.fetchrow(
        "select floor, timeline, more from headrace_internal.delete_old_witnesses($1, $2, coalesce($3, clock_timestamp()))",
        *arguments,
    )
    return Forgotten(*row)


async def transaction_status(
    executor: Executor, xid: int, *, acks: Acks | None = None, witness: Witness | None = None
) -> Status:
    """The outcome of a transaction after a COMMIT without an answer. Use another connection.

    "aborted" means that the transaction can't commit any more. "in progress" means that this is still open,
    so ask again. It is also returned for a transaction so old that the server has forgotten it, which takes
    days. Then its lease decides. "unknown" is returned only if the witness has been removed meanwhile,
    after `headrace_internal.witness_retention()`, and the server's history was rewound.

    Args:
        acks: what it acked, if anything. A server that crashed may reuse the id of a transaction that had
            written nothing to disk. While the leases exist, their acks distinguish the two.
        witness: what it left, if anything, for the same reason.

    Raises `StoreUnavailable`.
    """
    status: Status | None
    if witness is not None and witness.at is not None:
        status = await executor.fetchval("select headrace_internal.commit_status($1::bigint, $2, $3, $4)", *witness)
        return status or "unknown"
    if acks is None:
        status = await executor.fetchval("select headrace_internal.transaction_status($1::bigint)", xid)
    else:
        status = await executor.fetchval(
            "select headrace_internal.ack_status($1::int, $2::bigint[], $3::bigint[], $4::bigint)", *acks, xid
        )
    return status or "in progress"
