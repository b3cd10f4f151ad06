"""check_in: compare the leases of an owner with the store, in a new history of the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from headrace.store.database.database import Executor

_CHECK_IN = """select in_history, held_lease, replaced, held_seqs, held_hashes
               from headrace_internal.check_in($1, $2, $3, $4, $5, $6, $7, coalesce($8, clock_timestamp()))"""


class Owner(NamedTuple):
    """An owner of leases: its consumer, by its number and its names."""

    consumer: int
    id: UUID
    stream: str
    name: str


class CheckIn(NamedTuple):
    """The leases of an owner in the store.

    Attributes:
        history: the history of the database, see `Batch.history`.
        leases: the leases, with the hashes of the keys of their messages that are not acked, by seq. Holds are without
            messages.
        holds: the new holds, by the lost leases in whose place they are.
    """

    history: UUID
    leases: dict[int, dict[int, int]]
    holds: dict[int, int]


async def check_in(
    executor: Executor,
    owner: Owner,
    messages: Sequence[tuple[int, int, str]],
    known: list[int] | None = None,
    *,
    before: UUID | None = None,
    now: datetime | None = None,
) -> CheckIn:
    """Check in as an owner of leases. All of its leases are extended.

    Args:
        messages: the leases, seqs and keys of the messages that the owner is at. For those of a lease that is lost, it
            gets a hold, which keeps their keys.
        before: the history in which it has checked in before. None if it has not.
        known: other leases of the owner are released. None releases none.
        now: the time, for tests. By default the server's clock.

    Raises:
        UnknownConsumer: the consumer was deleted, or its id is that of another one.
        StoreUnavailable: check in again. Holds that were made are leases that are not known then.
    """
    arguments = (*owner, before, known, msgspec.json.encode(messages).decode(), now)
    rows = await executor.fetch(_CHECK_IN, *arguments)
    if not rows:
        await executor.fetchval("select headrace_internal.begin_timeline()")
        rows = await executor.fetch(_CHECK_IN, *arguments)
    leases = {
        row["held_lease"]: dict(zip(row["held_seqs"] or (), row["held_hashes"] or (), strict=True))
        for row in rows
        if row["held_lease"] is not None
    }
    holds = {row["replaced"]: row["held_lease"] for row in rows if row["replaced"] is not None}
    return CheckIn(rows[0]["in_history"], leases, holds)


async def has_idle_owner(executor: Executor, consumer: int, owner: UUID) -> bool:
    """Whether another owner that has checked in could take messages of the consumer. It holds none, and its process
    reports no open circuit breaker. Raises `StoreUnavailable`."""
    idle: bool = await executor.fetchval("select headrace_internal.has_idle_owner($1, $2)", consumer, owner)
    return idle


async def check_out(executor: Executor, owner: Owner) -> None:
    """Note that an owner has ended, so that no lease call waits for it after a crash."""
    await executor.fetchval("select headrace_internal.check_out($1, $2)", owner.consumer, owner.id)
