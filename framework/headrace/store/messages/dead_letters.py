"""dead letters: list, count, redrive or purge them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from headrace.model.conditions import Condition
from headrace.model.pages import Page
from headrace.model.records import DeadLetter, DeadLetterGroup, GroupedBy
from headrace.store.database.database import Executor
from headrace.store.database.pages import page_of
from headrace.store.messages.peek import CONTENT, encoded, read


class DeadLetterSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the dead letters that match everything that is given. Without anything, all of them.

    Attributes:
        seqs: only these.
        key: only those of this key.
        filters, where: only messages with such keys, or such content.
        reason: "exhausted", "rejected" or "invalid".
        error_type: the type of the error, exactly. "" for those without one.
        error: the text of the error, exactly. "" for those without one.
        since, until: when they died, `until` excluded.
    """

    seqs: Sequence[int] | None = None
    key: str | None = None
    filters: Sequence[str] | None = None
    where: Condition | None = None
    reason: str | None = None
    error_type: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def arguments(self) -> tuple[str | None, Sequence[str] | None, str | None]:
        """Return the selection as the functions of the schema take it: p_choice, p_filters and p_where."""
        choice: dict[str, Any] = {
            "seqs": None if self.seqs is None else list(self.seqs),
            "key": self.key,
            "reason": self.reason,
            "error_type": self.error_type,
            "error": self.error,
            "since": self.since,
            "until": self.until,
        }
        given = {name: value for name, value in choice.items() if value is not None}
        return msgspec.json.encode(given).decode() if given else None, self.filters, encoded(self.where)


ALL = DeadLetterSelection()
"""All dead letters of a consumer."""


async def dead_letters(
    executor: Executor,
    consumer: int,
    selection: DeadLetterSelection = ALL,
    *,
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
    arguments = (consumer, *selection.arguments(), above, limit, below, newest, max_bytes)
    rows = await executor.fetch(
        """select seq, key, data, headers, created_at, attempts, reason, error, error_type, traceback, blocks, died_at
           from headrace_internal.dead_letter_page($1, $2, $3, $4, $5, $6, $7, $8, $9)""",
        *arguments,
    )
    return await page_of(
        rows,
        lambda row: DeadLetter(**read(row, raw)),
        limit=limit,
        max_bytes=max_bytes,
        sized=(*CONTENT, "error", "traceback"),
        backwards=newest,
    )


async def dead_letter_groups(
    executor: Executor, consumer: int, by: GroupedBy, selection: DeadLetterSelection = ALL, *, limit: int = 100
) -> list[DeadLetterGroup]:
    """Count the dead letters that match, in groups. Returns the `limit` largest groups, the largest first."""
    arguments = (consumer, by, limit, *selection.arguments())
    rows = await executor.fetch(
        """select value, messages, first_died_at, last_died_at, lowest, highest
           from headrace_internal.dead_letter_groups($1, $2, $3, $4, $5, $6)""",
        *arguments,
    )
    return [DeadLetterGroup(**row) for row in rows]


async def redrive(
    executor: Executor,
    consumer: int,
    seqs: Sequence[int] | None = None,
    *,
    selection: DeadLetterSelection = ALL,
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
    selection: DeadLetterSelection = ALL,
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
    selection: DeadLetterSelection,
    dry_run: bool,
) -> int:
    if seqs is not None:
        selection = msgspec.structs.replace(selection, seqs=seqs)
    count: int = await executor.fetchval(
        f"select headrace_internal.{function}($1, $2, $3, $4, $5)", consumer, *selection.arguments(), dry_run
    )
    return count
