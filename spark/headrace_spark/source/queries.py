"""Short queries to the database, on one connection that is opened on first use and again after it broke."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.model.errors import InvalidInput, StoreUnavailable
from headrace.model.log import Log
from headrace_spark.positions.offsets import Witness
from headrace_spark.source.connection import Place, connect, fetch
from headrace_spark.source.options import Options

if TYPE_CHECKING:
    from adbc_driver_postgresql.dbapi import Connection  # type: ignore[import-untyped]

log = Log("headrace.spark")

MAX_STREAMS = 1000
"""Maximum number of streams that one read or query has."""


class Found(msgspec.Struct, frozen=True):
    """A stream as it is now.

    Attributes:
        uid: its unique id, which differs from that of another stream of the same name.
        last: the last seq that was drawn.
    """

    name: str
    uid: str
    last: int


class Queries:
    """A connection for short queries. The caller closes it.

    Args:
        place: the database.
        patience: seconds for which a query is retried while the database can't be reached.

    Attributes:
        lost: number of connections that were lost.
    """

    def __init__(self, place: Place, *, patience: float = 0.0) -> None:
        self._place = place
        self._patience = patience
        self._connection: Connection | None = None
        self.lost = 0

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def fetch(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a short query. Raises Headrace's errors."""
        deadline = time.monotonic() + self._patience
        pause = 0.1
        while True:
            try:
                self._connection = self._connection or connect(self._place)
                return fetch(self._connection, self._place, sql, *arguments)
            except StoreUnavailable as error:
                self._drop()
                if time.monotonic() + pause > deadline:
                    raise
                log.warning("database unavailable", error=error, seconds=pause)
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _drop(self) -> None:
        self.lost += 1
        try:
            self.close()
        except Exception as error:  # it is broken already
            log.debug("broken connection not closed", error=error)

    def streams(self, options: Options) -> list[Found]:
        """The streams that the options name, or that their pattern matches now, by name.

        Raises:
            UnknownStream: a stream that is named does not exist.
            InvalidInput: the pattern matches more than `MAX_STREAMS`.
            ConfigurationError: the pattern is not a regular expression.
        """
        arguments = (array(options.streams), options.pattern, MAX_STREAMS + 1)
        rows = self.fetch(
            "select name, uid, last from headrace_internal.range_streams($1::text::text[], $2, $3)", *arguments
        )
        if len(rows) > MAX_STREAMS:
            raise InvalidInput(
                f"streamPattern={options.pattern!r} matches more than {MAX_STREAMS} streams. Write one that matches fewer."
            )
        found = [Found(*row) for row in rows]
        for name in sorted(set(options.streams) - {one.name for one in found}):
            self.fetch("select (headrace_internal.require_stream($1)).id", name)  # raises
        return found

    def name_of(self, uid: str) -> str | None:
        """The name of the stream with this unique id now, or None if it was deleted."""
        sql = "select name from headrace_internal.range_streams('{}', '.*', null) where uid = $1::text"
        found = self.fetch(sql, uid)
        return str(found[0][0]) if found else None

    def witnesses(self, positions: Sequence[tuple[str, int]]) -> list[tuple[Witness, int]]:
        """The last message up to a position in each of these streams, and the last seq that was drawn."""
        if not positions:
            return []
        names, seqs = zip(*positions, strict=True)
        rows = self.fetch(
            "select seq, written, drawn from headrace_internal.range_witnesses($1::text::text[], $2::text::bigint[])",
            array(names),
            array(map(str, seqs)),
        )
        return [(Witness(seq, written), drawn) for seq, written, drawn in rows]

    def compares_bytes(self) -> bool:
        """Whether the database compares keys as Spark does, by the bytes of their UTF-8."""
        return bool(self.fetch("select getdatabaseencoding()")[0][0] == "UTF8")


def array(texts: Iterable[str]) -> str:
    """The texts as a Postgres array literal."""
    return "{" + ",".join('"' + text.replace("\\", r"\\").replace('"', r"\"") + '"' for text in texts) + "}"
