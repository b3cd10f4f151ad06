"""The readers' queries to the database, from the driver: range bounds, resolved position, and partition SQL."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.errors import InvalidInput, StoreUnavailable
from headrace.model.log import Log
from headrace_spark.source.connection import connect, fetch
from headrace_spark.source.marks import Marks
from headrace_spark.source.options import Edge, Options

if TYPE_CHECKING:
    from adbc_driver_postgresql.dbapi import Connection  # type: ignore[import-untyped]

log = Log("headrace.spark")

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
    """Queries about one stream, on a connection that is opened on first use.

    While the database can't be reached, a query is retried for `patience` seconds.
    """

    def __init__(self, options: Options, *, patience: float = 0.0) -> None:
        self._options = options
        self._patience = patience
        self._connection: Connection | None = None
        self._drawn = 0

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def fetch(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a short query. Raises Headrace's errors."""
        deadline = time.monotonic() + self._patience
        pause = 0.1
        while True:
            try:
                self._connection = self._connection or connect(self._options.place)
                return fetch(self._connection, self._options.place, sql, *arguments)
            except StoreUnavailable as error:
                self._drop()
                if time.monotonic() + pause > deadline:
                    raise
                log.warning("database unavailable", stream=self._options.stream, error=error, seconds=pause)
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _drop(self) -> None:
        try:
            self.close()
        except Exception as error:  # it is broken already
            log.debug("broken connection not closed", error=error)

    def uid(self) -> str:
        """The unique id of the stream, which differs from that of another stream of the same name."""
        return str(self.fetch("select (headrace_internal.require_stream($1)).uid::text", self._options.stream)[0][0])

    def compares_bytes(self) -> bool:
        """Whether the database compares keys as Spark does, by the bytes of their UTF-8."""
        return bool(self.fetch("select getdatabaseencoding()")[0][0] == "UTF8")

    def start(self, edge: Edge) -> int:
        """The position before the first message of a range. Raises `InvalidInput` if it is ahead of the stream."""
        sql = "select headrace_internal.range_start($1, $2, $3::bigint, $4::text::timestamptz)"
        return int(self.fetch(sql, self._options.stream, *_edge(edge))[0][0])

    def end(self, edge: Edge) -> int | None:
        """The last seq of a range, or None for the end of the stream.

        Raises `InvalidInput` if it is ahead of the stream.
        """
        if edge == "earliest":
            raise InvalidInput("end='earliest' would be an empty range. Write latest, a seq, or a time.")
        _, seq, moment = _edge(edge)
        sql = "select headrace_internal.range_end($1, $2::bigint, $3::text::timestamptz)"
        found = self.fetch(sql, self._options.stream, seq, moment)[0][0]
        return None if found is None else int(found)

    def mark(self, marks: Marks) -> int:
        """Remove the ended transactions from the marks, then add a new mark. Returns the last seq that was drawn."""
        self.remove_ended(marks)
        [(last, holders)] = self.fetch(
            "select last, open from headrace_internal.range_mark($1, $2)", self._options.stream, self._drawn
        )
        marks.add(last, holders or ())
        self._drawn = int(last)
        return self._drawn

    def remove_ended(self, marks: Marks) -> None:
        """Check which of the transactions that the marks wait for have ended."""
        if waiting := marks.open:
            [(still_open,)] = self.fetch(
                "select headrace_internal.still_open_xids($1::text::text[])", "{" + ",".join(waiting) + "}"
            )
            marks.ended(still_open or ())

    def settle(self, marks: Marks, target: int, patience: float) -> bool:
        """Wait up to `patience` seconds until everything up to the seq `target` is resolved. Returns whether it is.

        It also raises the position as far as it is resolved without waiting.
        """
        started = time.monotonic()
        pause, longest = _PAUSE
        for deadline in sorted({started + min(patience, _FALLBACK_DELAY), started + patience}):
            while marks.position < target and time.monotonic() < deadline:
                time.sleep(pause)
                pause = min(pause * 2, longest)
                self.remove_ended(marks)
            if marks.position < target:
                [(position,)] = self.fetch(
                    "select headrace_internal.resolved_position($1, $2)", self._options.stream, marks.position
                )
                marks.raise_to(position)
        return marks.position >= target

    def holders(self, marks: Marks) -> str:
        """A description of the transactions that still publish, for log and error messages."""
        found = self.fetch(
            "select headrace_internal.describe_transactions($1::text::text[])", "{" + ",".join(marks.open) + "}"
        )
        return "; ".join(line for (line,) in found if line) or "a process that has just ended"

    def limit(self, after: int, last: int, rows: int) -> int:
        """The largest position up to `last` with at most `rows` messages after `after`."""
        return int(
            self.fetch("select headrace_internal.range_limit($1, $2, $3, $4)", self._options.stream, after, last, rows)[
                0
            ][0]
        )

    def parts(
        self,
        first: int | None,
        last: int,
        columns: Sequence[str],
        tests: Iterable[dict[str, Any]] = (),
        uid: str | None = None,
    ) -> list[Part]:
        """The queries that read from the seq `first` to `last`. A `first` of None means the earliest message.

        Raises `InvalidInput` if retention has removed messages of this range and
        `fail_on_data_loss` is set.
        """
        options = self._options
        begin = first if first is not None else self.start("earliest") + 1
        rows = self.fetch(
            "select first, last, query from headrace_internal.plan_ranges($1, $2::bigint, $3, $4::text::text[], $5::text::json, $6::text::json,"
            " $7::int, $8::text::uuid, $9, $10::text::text[])",
            options.stream, first, last, _array(options.filters), options.where, json.dumps(list(tests)),
            options.partitions or _task_count(last - begin + 1), uid, options.fail_on_data_loss, _array(columns),
        )  # fmt: skip
        return [Part(*row) for row in rows]

    def confirm(self, consumer: str, position: int) -> None:
        """Move a consumer's cursor to the position.

        Raises `UnknownConsumer`, or `InvalidInput` if a worker uses the consumer.
        """
        self.fetch("select headrace_internal.confirm_range($1, $2, $3)", self._options.stream, consumer, position)


def _task_count(seqs: int) -> int:
    """The number of tasks for a number of seqs: the machine's cores, more for large ranges, fewer for small ones."""
    return max(1, min(-(-seqs // _MIN_SEQS_PER_TASK), max(os.cpu_count() or 1, -(-seqs // _MAX_SEQS_PER_TASK))))


def _edge(edge: Edge) -> tuple[str | None, int | None, str | None]:
    if isinstance(edge, datetime):
        return None, None, edge.isoformat()
    return (edge, None, None) if isinstance(edge, str) else (None, edge, None)


def _array(texts: Iterable[str]) -> str:
    """The texts as a Postgres array literal."""
    return "{" + ",".join('"' + text.replace("\\", r"\\").replace('"', r"\"") + '"' for text in texts) + "}"
