"""replay: deliver messages once more to one consumer, or publish them once more into another stream."""

from __future__ import annotations

from datetime import datetime

import msgspec

from headrace.model.conditions import Condition
from headrace.store.database import Executor
from headrace.store.peek import encoded


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages: those that match all that is given. Seqs and times are inclusive at both ends."""

    filters: tuple[str, ...] | None = None
    where: Condition | None = None
    start_seq: int | None = None
    end_seq: int | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None

    def arguments(self) -> tuple[object, ...]:
        """In the order in which the server functions take them."""
        return (
            self.filters, encoded(self.where), self.start_seq, self.end_seq, self.start_time, self.end_time,
        )  # fmt: skip


async def replay(executor: Executor, consumer: int, selection: Selection, *, dry_run: bool = False) -> int:
    """Deliver to the consumer again what it has had, as far as the selection and its own filters take it.

    They come before anything new, in order of seq, attempts counted from zero. What is in flight, parked, blocked, or yet to
    come is left out. With `dry_run` they are only counted.

    Returns:
        How many. Raises `UnknownConsumer`.
    """
    count: int = await executor.fetchval(
        "select headrace.replay($1, $2, $3, $4, $5, $6, $7, $8)", consumer, *selection.arguments(), dry_run
    )
    return count


async def republish(
    executor: Executor, stream: str, target: str, selection: Selection, *, dry_run: bool = False
) -> int:
    """Publish messages of `stream` to `target`, in their order, all or none; `target` may be the stream itself.

    They are new messages there: new seqs, the time of now. With `dry_run` those that match are only counted.

    Returns:
        How many were published. Raises `UnknownStream`, `StreamFull`.
    """
    count: int = await executor.fetchval(
        "select headrace.republish($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        stream, target, *selection.arguments(), dry_run,
    )  # fmt: skip
    return count
