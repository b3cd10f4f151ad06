"""The readers' queries to the database, from the driver: range bounds, resolved position, and partition SQL."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.errors import InvalidInput, StoreUnavailable
from headrace_spark.source.connection import ask, connect
from headrace_spark.source.marks import Marks
from headrace_spark.source.options import Edge, Options

if TYPE_CHECKING:
    from adbc_driver_postgresql.dbapi import Connection  # type: ignore[import-untyped]

logger = logging.getLogger("headrace.spark")

_FEW = 10_000
"""Number of seqs below which a separate task is not worth it."""
_MANY = 2_000_000
"""Maximum number of seqs for one task. A larger range gets more tasks than there are cores."""

_PAUSE = (0.002, 0.05)
"""First and longest pause, in seconds, between two checks whether publishers are still in progress."""
_SOON = 0.25
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

    def ask(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a short query. Raises Headrace's errors."""
        until = time.monotonic() + self._patience
        pause = 0.1
        while True:
            try:
                self._connection = self._connection or connect(self._options.place)
                return ask(self._connection, self._options.place, sql, *arguments)
            except StoreUnavailable as error:
                self._drop()
                if time.monotonic() + pause > until:
                    raise
                logger.warning("stream %s: %s Trying again.", self._options.stream, error)
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _drop(self) -> None:
        try:
            self.close()
        except Exception:  # it is broken already
            logger.debug("closing a broken connection", exc_info=True)

    def uid(self) -> str:
        """The unique id of the stream, which differs from that of another stream of the same name."""
        return str(self.ask("select (headrace.require_stream($1)).uid::text", self._options.stream)[0][0])

    def compares_bytes(self) -> bool:
        """Whether the database compares keys as Spark does, by the bytes of their UTF-8."""
        return bool(self.ask("select getdatabaseencoding()")[0][0] == "UTF8")

    def start(self, edge: Edge) -> int:
        """The position before the first message of a range. Raises `InvalidInput` if it is ahead of the stream."""
        sql = "select headrace.range_start($1, $2, $3::bigint, $4::text::timestamptz)"
        return int(self.ask(sql, self._options.stream, *_edge(edge))[0][0])

    def end(self, edge: Edge) -> int | None:
        """The last seq of a range, or None for the end of the stream.

        Raises `InvalidInput` if it is ahead of the stream.
        """
        if edge == "earliest":
            raise InvalidInput("end='earliest' would be no range: write latest, a seq, or a time.")
        _, seq, moment = _edge(edge)
        sql = "select headrace.range_end($1, $2::bigint, $3::text::timestamptz)"
        found = self.ask(sql, self._options.stream, seq, moment)[0][0]
        return None if found is None else int(found)

    def mark(self, marks: Marks) -> int:
        """Remove the ended transactions from the marks, then add a new mark. Returns the last seq that was drawn."""
        self.look(marks)
        [(last, holders)] = self.ask(
            "select last, open from headrace.range_mark($1, $2)", self._options.stream, self._drawn
        )
        marks.add(last, holders or ())
        self._drawn = int(last)
        return self._drawn

    def look(self, marks: Marks) -> None:
        """Check which of the transactions that the marks wait for have ended."""
        if waiting := marks.open:
            [(still,)] = self.ask("select headrace.still_open_xids($1::text::text[])", "{" + ",".join(waiting) + "}")
            marks.ended(still or ())

    def settle(self, marks: Marks, wanted: int, patience: float) -> bool:
        """Wait up to `patience` seconds until everything up to the seq `wanted` is resolved. Returns whether it is.

        It also raises the position as far as it is resolved without waiting.
        """
        begun = time.monotonic()
        pause, most = _PAUSE
        for until in sorted({begun + min(patience, _SOON), begun + patience}):
            while marks.position < wanted and time.monotonic() < until:
                time.sleep(pause)
                pause = min(pause * 2, most)
                self.look(marks)
            if marks.position < wanted:
                [(position,)] = self.ask(
                    "select headrace.resolved_position($1, $2)", self._options.stream, marks.position
                )
                marks.raise_to(position)
        return marks.position >= wanted

    def holders(self, marks: Marks) -> str:
        """A description of the transactions that still publish, for log and error messages."""
        found = self.ask("select headrace.describe_transactions($1::text::text[])", "{" + ",".join(marks.open) + "}")
        return "; ".join(line for (line,) in found if line) or "somebody who has just ended"

    def limit(self, after: int, last: int, rows: int) -> int:
        """The largest position up to `last` with at most `rows` messages after `after`."""
        return int(
            self.ask("select headrace.range_limit($1, $2, $3, $4)", self._options.stream, after, last, rows)[0][0]
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
        rows = self.ask(
            "select first, last, query from headrace.plan_ranges($1, $2::bigint, $3, $4::text::text[], $5::text::json, $6::text::json,"
            " $7::int, $8::text::uuid, $9, $10::text::text[])",
            options.stream, first, last, _array(options.filters), options.where, json.dumps(list(tests)),
            options.partitions or _worth(last - begin + 1), uid, options.fail_on_data_loss, _array(columns),
        )  # fmt: skip
        return [Part(*row) for row in rows]

    def confirm(self, consumer: str, position: int) -> None:
        """Move a consumer's cursor to the position.

        Raises `UnknownConsumer`, or `InvalidInput` if a worker uses the consumer.
        """
        self.ask("select headrace.confirm_range($1, $2, $3)", self._options.stream, consumer, position)


def _worth(seqs: int) -> int:
    """The number of tasks for a number of seqs: the machine's cores, more for large ranges, fewer for small ones."""
    return max(1, min(-(-seqs // _FEW), max(os.cpu_count() or 1, -(-seqs // _MANY))))


def _edge(edge: Edge) -> tuple[str | None, int | None, str | None]:
    if isinstance(edge, datetime):
        return None, None, edge.isoformat()
    return (edge, None, None) if isinstance(edge, str) else (None, edge, None)


def _array(texts: Iterable[str]) -> str:
    """The texts as a Postgres array literal."""
    return "{" + ",".join('"' + text.replace("\\", r"\\").replace('"', r"\"") + '"' for text in texts) + "}"
