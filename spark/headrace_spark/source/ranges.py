"""What the two readers ask of Headrace's database, on the driver: where a range begins, how far all is resolved, and the queries of its parts."""

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
"""Seqs for which a task of their own is not worth it."""
_MANY = 2_000_000
"""Seqs that are enough for one task, however few there are at a time."""

_PAUSE = (0.002, 0.05)
"""Seconds between two questions whether somebody still publishes: at first, and at most."""
_SOON = 0.25
"""Seconds after which it is worth a look at the messages themselves: who is still at it may be above all that is wanted."""


class Part(msgspec.Struct, frozen=True):
    """A range of seqs, and the SQL that reads it."""

    first: int
    last: int
    query: str


class Ranges:
    """Questions about one stream, on a connection of their own that is made when it is needed.

    While the database can't be reached, a question is asked again for `patience` seconds.
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
        """The rows of a short query. Raises Headrace's errors."""
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
        """The stream's own id, by which it is told from another of its name."""
        return str(self.ask("select (headrace.stream_named($1)).uid::text", self._options.stream)[0][0])

    def compares_bytes(self) -> bool:
        """Whether keys compare as they do in Spark: by the bytes of their UTF-8."""
        return bool(self.ask("select getdatabaseencoding()")[0][0] == "UTF8")

    def start(self, edge: Edge) -> int:
        """The position before the first message of a range. Raises `InvalidInput` for one that lies ahead."""
        sql = "select headrace.range_start($1, $2, $3::bigint, $4::text::timestamptz)"
        return int(self.ask(sql, self._options.stream, *_edge(edge))[0][0])

    def end(self, edge: Edge) -> int | None:
        """The last seq of a range; None for the end of the stream. Raises `InvalidInput` for one that lies ahead."""
        if edge == "earliest":
            raise InvalidInput("end='earliest' would be no range: write latest, a seq, or a time.")
        _, seq, moment = _edge(edge)
        sql = "select headrace.range_end($1, $2::bigint, $3::text::timestamptz)"
        found = self.ask(sql, self._options.stream, seq, moment)[0][0]
        return None if found is None else int(found)

    def mark(self, marks: Marks) -> int:
        """Take a new mark, after those who have ended are taken out of the others. Returns the last seq that was drawn."""
        self.look(marks)
        [(last, holders)] = self.ask(
            "select last, open from headrace.range_mark($1, $2)", self._options.stream, self._drawn
        )
        marks.add(last, holders or ())
        self._drawn = int(last)
        return self._drawn

    def look(self, marks: Marks) -> None:
        """See who has ended of those for whom marks wait."""
        if waiting := marks.open:
            [(still,)] = self.ask("select headrace.still_open($1::text::text[])", "{" + ",".join(waiting) + "}")
            marks.ended(still or ())

    def settle(self, marks: Marks, wanted: int, patience: float) -> bool:
        """Wait until all up to a seq is resolved, for so many seconds at most. What is resolved without waiting is found, too."""
        begun = time.monotonic()
        pause, most = _PAUSE
        for until in sorted({begun + min(patience, _SOON), begun + patience}):
            while marks.position < wanted and time.monotonic() < until:
                time.sleep(pause)
                pause = min(pause * 2, most)
                self.look(marks)
            if marks.position < wanted:
                [(position,)] = self.ask("select headrace.resolved($1, $2)", self._options.stream, marks.position)
                marks.raise_to(position)
        return marks.position >= wanted

    def holders(self, marks: Marks) -> str:
        """Who still publishes, for a person."""
        found = self.ask("select headrace.holders($1::text::text[])", "{" + ",".join(marks.open) + "}")
        return "; ".join(line for (line,) in found if line) or "somebody who has just ended"

    def limit(self, after: int, last: int, rows: int) -> int:
        """The largest position up to `last` with at most so many messages after `after`."""
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
        """The queries that read from a seq (None: the first that is there) to another. Raises `InvalidInput` when there was more once."""
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
        """Move a consumer up to here. Raises `UnknownConsumer`; `InvalidInput` when a worker uses it."""
        self.ask("select headrace.confirm_range($1, $2, $3)", self._options.stream, consumer, position)


def _worth(seqs: int) -> int:
    """How many tasks to read so many seqs with: the machine's cores, more when that is much for one, fewer when it is little."""
    return max(1, min(-(-seqs // _FEW), max(os.cpu_count() or 1, -(-seqs // _MANY))))


def _edge(edge: Edge) -> tuple[str | None, int | None, str | None]:
    if isinstance(edge, datetime):
        return None, None, edge.isoformat()
    return (edge, None, None) if isinstance(edge, str) else (None, edge, None)


def _array(texts: Iterable[str]) -> str:
    """Text as Postgres reads an array of texts."""
    return "{" + ",".join('"' + text.replace("\\", r"\\").replace('"', r"\"") + '"' for text in texts) + "}"
