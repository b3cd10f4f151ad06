"""erase: delete single messages for good, with every copy that the database has of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.model.pages import Page
from headrace.model.records import Erasure
from headrace.store.database.database import Executor
from headrace.store.database.missing_objects import with_repeat
from headrace.store.database.pages import page_of


async def erase(
    executor: Executor, stream: str, seqs: Sequence[int], *, by: str | None = None, reason: str | None = None
) -> list[int]:
    """Erase messages: their rows, the dead letters and the message ids that are of them.

    A repeated call finishes what one that was interrupted has begun. The contents go in one transaction, and then the
    state of each consumer that has any of the messages is changed.

    Args:
        by: who erases them. By default the role of the session.
        reason: why, for people.

    Returns:
        The seqs of the messages that were erased now. Those that are not in the stream, or were erased before, are
        left out.

    Raises:
        UnknownStream, StoreUnavailable.
    """
    found = await with_repeat(lambda: erase_contents(executor, stream, seqs, by=by, reason=reason))
    await forget_erased(executor, found.consumers, seqs)
    return found.seqs


class Erased(NamedTuple):
    """The messages whose contents were erased now, and the consumers that have something of any that were named."""

    seqs: list[int]
    consumers: list[int]


async def erase_contents(
    executor: Executor, stream: str, seqs: Sequence[int], *, by: str | None = None, reason: str | None = None
) -> Erased:
    """The first step of `erase`: the contents, in one transaction. `forget_erased` must follow it."""
    row = await executor.fetchrow(
        "select * from headrace_internal.erase_messages($1, $2, $3, $4)", stream, list(seqs), by, reason
    )
    return Erased(list(row["erased"]), list(row["consumers"]))


async def forget_erased(executor: Executor, consumers: Sequence[int], seqs: Sequence[int]) -> None:
    """The second step of `erase`: the state of each consumer, in a transaction of its own."""
    for consumer in consumers:
        await executor.fetchval("select headrace_internal.forget_erased($1, $2)", consumer, list(seqs))


async def erasures(
    executor: Executor, stream: str, *, limit: int = 100, above: int = 0, below: int | None = None
) -> Page[Erasure]:
    """The traces of the erased messages of a stream, in the order of seq: the first ones above a seq, or the last ones
    below one. Raises `UnknownStream`."""
    rows = await executor.fetch(
        "select * from headrace_internal.erasure_page($1, $2, $3, $4)", stream, limit, above, below
    )
    return await page_of(rows, lambda row: Erasure(**row), limit=limit, backwards=below is not None)
