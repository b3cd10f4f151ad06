"""replay: deliver messages again to one consumer, or publish them again to another stream."""

from __future__ import annotations

from datetime import datetime

from headrace.store.database.database import Executor
from headrace.store.messages.peek import SeqRange


class Selection(SeqRange, frozen=True, kw_only=True):
    """A selection of messages: those that match everything that is given. Seqs and times are inclusive at both ends."""

    start_time: datetime | None = None
    end_time: datetime | None = None


async def replay(executor: Executor, consumer: int, selection: Selection, *, dry_run: bool = False) -> int:
    """Deliver messages of the selection to the consumer again, if they pass its filters and it has had them.

    They come before new messages, in the order of seq, with attempts counted from zero. Messages that are
    parked, blocked or not read yet are left out. So are those in flight, except those of an ordered consumer that are later
    than a replayed message of their key: they are redelivered after it. With `dry_run` they are only counted.

    Returns:
        How many. Raises `UnknownConsumer`.
    """
    count: int = await executor.fetchval(
        "select headrace_internal.replay($1, $2, $3)", consumer, selection.encoded(), dry_run
    )
    return count


async def republish(
    executor: Executor, stream: str, target: str, selection: Selection, *, dry_run: bool = False
) -> int:
    """Publish messages of `stream` to `target`, in their order, all or nothing. `target` may be the same stream.

    They become new messages there, with new seqs and the current time. With `dry_run` the matching ones are
    only counted.

    Returns:
        How many were published. Raises `UnknownStream`, `StreamFull`.
    """
    arguments = (stream, target, selection.encoded(), dry_run)
    count: int = await executor.fetchval("select headrace_internal.republish($1, $2, $3, $4)", *arguments)
    return count
