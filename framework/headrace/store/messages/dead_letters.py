"""dead letters: list, count, redrive or purge them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.conditions.selections import DeadLetterCriteria, check_criteria
from headrace.model.pages import Page
from headrace.model.records import DeadLetter, DeadLetterGroup, GroupedBy
from headrace.store.database.database import Executor
from headrace.store.database.pages import page_of
from headrace.store.messages.peek import CONTENT, DECODED, Contents, read, selected

ALL: DeadLetterCriteria = {}
"""All dead letters of a consumer."""


def chosen(criteria: DeadLetterCriteria) -> str | None:
    """Return criteria, as `headrace.admin.validation` has parsed them, as the functions of the schema take them. Raises
    `InvalidInput`.
    """
    given = check_criteria(DeadLetterCriteria, criteria)
    if "seqs" in given:
        given["seqs"] = list(given["seqs"])
    return selected(given.pop("filter", None), given.pop("where", None), given)


async def dead_letters(
    executor: Executor,
    consumer: int,
    selection: DeadLetterCriteria = ALL,
    *,
    above: int = 0,
    below: int | None = None,
    limit: int = 100,
    contents: Contents = DECODED,
) -> Page[DeadLetter]:
    """Dead letters that match, with a seq above `above`, in the order of seq, at most `limit`.

    Args:
        below: only those with a smaller seq, and the last `limit` of them instead of the first.
        contents: errors and tracebacks count for `max_bytes`, too.
    """
    newest = below is not None
    arguments = (consumer, chosen(selection), above, limit, below, newest, contents.max_bytes)
    rows = await executor.fetch(
        """select seq, key, data, headers, created_at, attempts, reason, error, error_type, traceback, blocks, died_at
           from headrace_internal.dead_letter_page($1, $2, $3, $4, $5, $6, $7)""",
        *arguments,
    )
    return await page_of(
        rows,
        lambda row: DeadLetter(**read(row, contents.raw)),
        limit=limit,
        max_bytes=contents.max_bytes,
        sized=(*CONTENT, "error", "traceback"),
        backwards=newest,
    )


async def dead_letter_groups(
    executor: Executor, consumer: int, by: GroupedBy, selection: DeadLetterCriteria = ALL, *, limit: int = 100
) -> list[DeadLetterGroup]:
    """Count the dead letters that match, in groups. Returns the `limit` largest groups, the largest first."""
    arguments = (consumer, by, limit, chosen(selection))
    rows = await executor.fetch(
        """select value, messages, first_died_at, last_died_at, lowest, highest
           from headrace_internal.dead_letter_groups($1, $2, $3, $4)""",
        *arguments,
    )
    return [DeadLetterGroup(**row) for row in rows]


async def redrive(
    executor: Executor,
    consumer: int,
    seqs: Sequence[int] | None = None,
    *,
    selection: DeadLetterCriteria = ALL,
    dry_run: bool = False,
) -> int:
    """Deliver dead letters again. Attempts count from zero, and those of a key keep their order.

    A blocked key continues from that message. Other dead letters that block the same key are redriven with
    it. A dead letter stays unchanged if retention has removed its message.

    Args:
        seqs: which dead letters, short for a selection of these.
        selection: which dead letters. If nothing is given, all are redriven.
        dry_run: only count them.

    Returns:
        How many. Raises `UnknownConsumer`.
    """
    return await _call("redrive_chosen", executor, consumer, seqs, selection, dry_run)


async def discard(
    executor: Executor,
    consumer: int,
    seqs: Sequence[int] | None = None,
    *,
    selection: DeadLetterCriteria = ALL,
    dry_run: bool = False,
) -> int:
    """Purge dead letters, selected as in `redrive`. Returns how many.

    A blocked key continues after them, once no other dead letter blocks it.
    """
    return await _call("discard_chosen", executor, consumer, seqs, selection, dry_run)


async def _call(
    function: str,
    executor: Executor,
    consumer: int,
    seqs: Sequence[int] | None,
    selection: DeadLetterCriteria,
    dry_run: bool,
) -> int:
    if seqs is not None:
        selection = {**selection, "seqs": seqs}
    count: int = await executor.fetchval(
        f"select headrace_internal.{function}($1, $2, $3)", consumer, chosen(selection), dry_run
    )
    return count
