"""The readers' queries to the database, from the driver: range bounds, resolved position, and partition SQL.

The database makes the text of each task's query, with every literal quoted there. So an executor needs the database's URL
and that text, and neither the schema nor any settings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from headrace.model.errors import InvalidInput
from headrace_spark.positions.marks import Marks
from headrace_spark.source.options import Edge, Options
from headrace_spark.source.queries import Queries, array

_MIN_SEQS_PER_TASK = 10_000
"""Number of seqs below which a separate task is not worth it."""
_MAX_SEQS_PER_TASK = 2_000_000
"""Maximum number of seqs for one task. A larger range gets more tasks than there are cores."""

_PAUSE = (0.002, 0.05)
"""First and longest pause, in seconds, between two checks whether publishers are still in progress."""
_FALLBACK_DELAY = 0.25
"""Seconds after which the messages themselves are checked.

The open transactions may all publish above the wanted seq.
"""


class Part(msgspec.Struct, frozen=True):
    """A range of seqs and the SQL that reads it."""

    first: int
    last: int
    query: str


class Ranges:
    """Queries about the ranges of one stream, and the marks that say how far it is resolved.

    Args:
        queries: the connection.
        options: the options of the read.
        stream: the name of the stream.
    """

    def __init__(self, queries: Queries, options: Options, stream: str) -> None:
        self.stream = stream
        self.marks = Marks()
        self._queries = queries
        self._options = options
        self._drawn = 0

    def uid(self) -> str:
        """The unique id of the stream, which differs from that of another stream of the same name."""
        return str(self._queries.fetch("select (headrace_internal.require_stream($1)).uid::text", self.stream)[0][0])

    def start(self, edge: Edge) -> int:
        """The position before the first message of a range. Raises `InvalidInput` if it is ahead of the stream."""
        sql = "select headrace_internal.range_start($1, $2, $3::bigint, $4::text::timestamptz)"
        return int(self._queries.fetch(sql, self.stream, *_edge(edge))[0][0])

    def end(self, edge: Edge) -> int | None:
        """The last seq of a range, or None for the end of the stream.

        Raises `InvalidInput` if it is ahead of the stream.
        """
        if edge == "earliest":
            raise InvalidInput("end='earliest' would be an empty range. Write latest, a seq, or a time.")
        _, seq, moment = _edge(edge)
        sql = "select headrace_internal.range_end($1, $2::bigint, $3::text::timestamptz)"
        found = self._queries.fetch(sql, self.stream, seq, moment)[0][0]
        return None if found is None else int(found)

    def mark(self) -> int:
        """Remove the ended transactions from the marks, then add a new mark. Returns the last seq that was drawn."""
        remove_ended(self._queries, [self.marks])
        [(last, holders)] = self._queries.fetch(
            "select last, open from headrace_internal.range_mark($1, $2)", self.stream, self._drawn
        )
        self.marks.add(last, holders or ())
        self._drawn = int(last)
        return self._drawn

    def look(self) -> None:
        """Raise the position by looking at the messages themselves, for the first one that is missing."""
        [(position,)] = self._queries.fetch(
            "select headrace_internal.resolved_position($1, $2)", self.stream, self.marks.position
        )
        self.marks.raise_to(position)

    def settle(self, target: int, patience: float) -> bool:
        """Wait until everything up to the seq `target` is resolved. See `settle`. Returns whether it is."""
        settle(self._queries, [(self, target)], patience)
        return self.marks.position >= target

    def holders(self) -> str:
        """A description of the transactions that still publish, for log and error messages."""
        found = self._queries.fetch(
            "select headrace_internal.describe_transactions($1::text::text[])", "{" + ",".join(self.marks.open) + "}"
        )
        return "; ".join(line for (line,) in found if line) or "a process that has just ended"

    def limit(self, after: int, last: int, rows: int, size: int | None = None) -> int:
        """The largest position up to `last` with at most `rows` messages after `after`, and at most `size` bytes of them."""
        sql = "select headrace_internal.range_limit($1, $2, $3, $4, $5::bigint)"
        return int(self._queries.fetch(sql, self.stream, after, last, rows, size)[0][0])

    def parts(
        self,
        first: int | None,
        last: int,
        columns: Sequence[str],
        tests: Iterable[dict[str, Any]] = (),
        uid: str | None = None,
        tasks: int | None = None,
    ) -> list[Part]:
        """The queries that read from the seq `first` to `last`. A `first` of None means the earliest message.

        They are at most `tasks`. None lets the options decide.

        Raises `InvalidInput` if retention has removed messages of this range and
        `fail_on_data_loss` is set.
        """
        options = self._options
        if tasks is None:
            begin = first if first is not None else self.start("earliest") + 1
            tasks = options.tasks(task_count(last - begin + 1))
        where = None if options.where is None else msgspec.Raw(options.where.encode())
        selection = msgspec.json.encode({"filter": options.filters, "where": where, "tests": list(tests)}).decode()
        arguments = (self.stream, first, last, selection, tasks, uid, options.fail_on_data_loss, array(columns))
        rows = self._queries.fetch(
            "select first, last, query from headrace_internal.plan_ranges($1, $2::bigint, $3, $4::text::json,"
            " $5::int, $6::text::uuid, $7, $8::text::text[])",
            *arguments,
        )
        return [Part(*row) for row in rows]

    def confirm(self, consumer: str, position: int) -> None:
        """Move a consumer's cursor to the position.

        Raises `UnknownConsumer`, or `InvalidInput` if a worker uses the consumer.
        """
        self._queries.fetch("select headrace_internal.confirm_range($1, $2, $3)", self.stream, consumer, position)


def remove_ended(queries: Queries, marks: Iterable[Marks]) -> None:
    """Check which of the transactions that the marks wait for have ended, by one query for all of them."""
    marks = [mark for mark in marks if mark.open]
    if marks:
        waiting = frozenset().union(*(mark.open for mark in marks))
        [(still_open,)] = queries.fetch(
            "select headrace_internal.still_open_xids($1::text::text[])", "{" + ",".join(sorted(waiting)) + "}"
        )
        for mark in marks:
            mark.ended(still_open or ())


def settle(queries: Queries, wanted: Sequence[tuple[Ranges, int]], patience: float) -> None:
    """Wait up to `patience` seconds until each range is resolved up to its seq.

    It also raises their positions as far as they are resolved without waiting.
    """
    started = time.monotonic()
    pause, longest = _PAUSE
    for deadline in sorted({started + min(patience, _FALLBACK_DELAY), started + patience}):
        while (left := _unresolved(wanted)) and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 2, longest)
            remove_ended(queries, [ranges.marks for ranges in left])
        for ranges in left:
            ranges.look()


def _unresolved(wanted: Iterable[tuple[Ranges, int]]) -> list[Ranges]:
    return [ranges for ranges, target in wanted if ranges.marks.position < target]


def task_count(seqs: int) -> int:
    """The number of tasks for a number of seqs: the machine's cores, more for large ranges, fewer for small ones."""
    return max(1, min(-(-seqs // _MIN_SEQS_PER_TASK), max(os.cpu_count() or 1, -(-seqs // _MAX_SEQS_PER_TASK))))


def _edge(edge: Edge) -> tuple[str | None, int | None, str | None]:
    if isinstance(edge, datetime):
        return None, None, edge.isoformat()
    return (edge, None, None) if isinstance(edge, str) else (None, edge, None)
