"""dead letters: list, redrive or purge them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.conditions import Condition
from headrace.model.pages import Page
from headrace.model.records import DeadLetter
from headrace.store.database.pages import page_of, text_size
from headrace.store.database.pool import Executor
from headrace.store.messages.peek import content_size, encoded, read


async def dead_letters(
    executor: Executor,
    consumer: int,
    *,
    filters: Sequence[str] | None = None,
    where: Condition | None = None,
    above: int = 0,
    below: int | None = None,
    limit: int = 100,
    newest: bool = False,
    max_bytes: int | None = None,
    raw: bool = False,
) -> Page[DeadLetter]:
    """Dead letters that match, with a seq above `above`, in the order of seq, at most `limit`. `raw` as for
    `messages`.

    Args:
        below: only those with a smaller seq.
        newest: the last `limit` of them instead of the first.
        max_bytes: as for `messages`. Errors and tracebacks count, too.
    """
    rows = await executor.fetch(
        """select seq, key, data, headers, created_at, attempts, reason, error, traceback, blocks, died_at
           from headrace_internal.find_dead_letters($1, $2, $3, $4, $5, $6, $7, $8)""",
        consumer, filters, encoded(where), above, limit, below, newest, max_bytes,
    )  # fmt: skip
    return await page_of(
        rows, lambda row: DeadLetter(**read(row, raw)), limit=limit, max_bytes=max_bytes,
        size=lambda row: content_size(row) + text_size(row["error"]) + text_size(row["traceback"]), backwards=newest,
    )  # fmt: skip


async def redrive(
    executor: Executor,
    consumer: int,
    seqs: Sequence[int] | None = None,
    *,
    key: str | None = None,
    filters: Sequence[str] | None = None,
    where: Condition | None = None,
    dry_run: bool = False,
) -> int:
    """Deliver dead letters again. Attempts count from zero, and those of a key keep their order.

    A blocked key continues from that message. Other dead letters that block the same key are redriven with
    it. A dead letter stays unchanged if retention has removed its message.

    Args:
        seqs: which dead letters. They must match everything that is given. If nothing is given, all are redriven.
        dry_run: only count them.

    Returns:
        How many. Raises `UnknownConsumer`.
    """
    return await _call("redrive", executor, consumer, seqs, key, filters, where, dry_run)


async def discard(
    executor: Executor,
    consumer: int,
    seqs: Sequence[int] | None = None,
    *,
    key: str | None = None,
    filters: Sequence[str] | None = None,
    where: Condition | None = None,
    dry_run: bool = False,
) -> int:
    """Purge dead letters, selected as in `redrive`. Returns how many.

    A blocked key continues after them, once no other dead letter blocks it.
    """
    return await _call("discard", executor, consumer, seqs, key, filters, where, dry_run)


async def _call(
    verb: str,
    executor: Executor,
    consumer: int,
    seqs: Sequence[int] | None,
    key: str | None,
    filters: Sequence[str] | None,
    where: Condition | None,
    dry_run: bool,
) -> int:
    count: int = await executor.fetchval(
        f"select headrace_internal.{verb}($1, $2, $3, $4, $5, $6)",
        consumer,
        seqs,
        key,
        filters,
        encoded(where),
        dry_run,
    )
    return count
