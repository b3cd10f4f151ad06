"""completions: which messages a consumer has completed. See `sql/functions/messages/completions.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from headrace.model.pages import timed_place, timed_text
from headrace.model.watching.completions import Completion, CompletionPage
from headrace.store.database.database import Executor

_COLUMNS = Completion.__struct_fields__


class CompletionPosition(NamedTuple):
    """An entry in the history of a consumer: its time, its row, and its place in the row."""

    at: datetime
    row: int
    place: int

    def __str__(self) -> str:
        return timed_text(self)

    @classmethod
    def parse(cls, text: str) -> CompletionPosition:
        """Read what `str` has made. Raises `ValueError`."""
        return cls(*timed_place(text, 2))


async def completions_of_messages(
    executor: Executor, consumer: int, seqs: Sequence[int], *, each: int = 10, now: datetime | None = None
) -> list[Completion]:
    """Return the completions of messages, in their order, of each message the newest ones.

    Args:
        each: the most completions of one message.
        now: the time, for tests.
    """
    rows = await executor.fetch(
        "select * from headrace_internal.completions_of_messages($1, $2, $3, coalesce($4, clock_timestamp()))",
        consumer,
        list(seqs),
        each,
        now,
    )
    return [Completion(**row) for row in rows]


async def completion_page(
    executor: Executor,
    consumer: int,
    *,
    limit: int = 50,
    before: CompletionPosition | None = None,
    now: datetime | None = None,
) -> CompletionPage:
    """Return the newest completions of a consumer.

    Args:
        before: only entries before this one.
        now: the time, for tests.
    """
    arguments = (consumer, limit, *(before or (None, None, None)), now)
    rows = await executor.fetch(
        "select * from headrace_internal.completion_page($1, $2, $3, $4, $5, coalesce($6, clock_timestamp()))",
        *arguments,
    )
    return CompletionPage(
        completions=[Completion(**{name: row[name] for name in _COLUMNS}) for row in rows],
        next=str(CompletionPosition(rows[-1]["at"], rows[-1]["id"], rows[-1]["place"])) if len(rows) == limit else None,
    )


async def consumers_with_completions(executor: Executor) -> list[int]:
    """Return the consumers that have completions, also those that were deleted."""
    return list(await executor.fetchval("select headrace_internal.consumers_with_completions()"))


class CompletionsDeleted(NamedTuple):
    """The result of `delete_old_completions`: the number of rows, the time up to which none is left, and whether there may
    be more to delete.
    """

    rows: int
    reached: datetime | None
    more: bool


async def delete_old_completions(
    executor: Executor, consumer: int, floor: datetime | None, *, now: datetime | None = None
) -> CompletionsDeleted:
    """Delete the oldest completions of a consumer that no longer count, reading from the time `floor`."""
    row = await executor.fetchrow(
        "select * from headrace_internal.delete_old_completions($1, coalesce($2::timestamptz, '-infinity'), coalesce($3, clock_timestamp()))",
        consumer,
        floor,
        now,
    )
    return CompletionsDeleted(row["removed"], row["reached"] if row["removed"] else floor, row["more"])
