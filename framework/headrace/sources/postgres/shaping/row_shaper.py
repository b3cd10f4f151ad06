"""Makes messages of rows that are read: by a backfill, and to compare a table with its stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.model.log import Log
from headrace.sources.postgres.pgoutput.messages import (
    Value,
)
from headrace.sources.postgres.rules.keys import NoKey
from headrace.sources.postgres.rules.transform_watchdog import TransformStuck
from headrace.sources.postgres.shaping.message_builder import MAX_MESSAGE_BYTES, MessageBuilder
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges, Transaction
from headrace.sources.postgres.shaping.shapes import Shape, shape_of_table
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table
from headrace.sources.postgres.values import TypeInfo

log = Log("headrace")


class RowShaper:
    """Makes the messages of rows of one source.

    Args:
        spec: its settings.
        transform: the loaded function that `spec.transform` names.
        max_message_bytes: the largest size of a message.
    """

    def __init__(
        self,
        spec: PostgresSpec,
        transform: Callable[..., Any] | None = None,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._spec = spec
        self._builder = MessageBuilder(spec, transform, max_message_bytes)
        self._backfill_shapes: dict[str, tuple[tuple[Any, ...], Shape]] = {}
        self._mode_rows = spec.mode == "rows"
        self._read = (
            b'{"record":{%b}%b%d}}' if self._mode_rows else b'{"record":{%b},"changes":null,"action":"read"%b%d}}'
        )
        self._tombstones = self._mode_rows and spec.deletes == "tombstone"

    def add_rows(
        self,
        table: Table,
        types: Mapping[int, TypeInfo],
        rows: Sequence[Sequence[bytes | None]],
        columns: Sequence[str],
        transaction: Transaction,
        into: ShapedChanges,
    ) -> int:
        """Add rows that a backfill has read.

        Args:
            columns: the names of the rows' values.
            transaction: the one that marks their place in the WAL. The rows are numbered in it from
                0 on.

        Returns:
            How many messages were added.
        """
        shape = self.read_shape(table, types, columns)
        metadata, before = shape.metadata(transaction), len(into.keys)
        for idx, row in enumerate(rows):
            try:
                self._add(shape, row, self._read % (shape.record(row), metadata, idx), into, ())
            except TransformStuck:
                raise
            except Exception as error:
                self._keep_unshaped(shape, row, transaction, idx, error, into)
        return len(into.keys) - before

    def record(
        self, table: Table, types: Mapping[int, TypeInfo], row: Sequence[bytes | None], columns: Sequence[str]
    ) -> str:
        """Return the JSON of a row that was read, neither checked nor transformed."""
        return "{" + self.read_shape(table, types, columns).record(row).decode("utf-8", "replace") + "}"

    def expect(
        self, shape: Shape, row: Sequence[bytes | None], transaction: Transaction, idx: int, into: ShapedChanges
    ) -> str | None:
        """Add the message that a row should have, or a failure. Returns the row's key if the row does not meet the
        condition, and so should have no message. Raises `NoKey`.
        """
        data = self._read % (shape.record(row), shape.metadata(transaction), idx)
        key = shape.key(row)
        meets = self._builder.meets(key, data)
        if isinstance(meets, Exception):
            self._builder.add_failure(key, data, meets, into)
        elif meets:
            self._builder.add_transformed(key, data, into)
        return None if meets else key

    def gone(self, shape: Shape, key: bytes, transaction: Transaction, idx: int) -> str:
        """Return the tombstone or the delete of a row, given the members of the JSON of its key."""
        metadata = shape.metadata(transaction)
        if self._mode_rows:
            return tombstone(metadata + b"%d" % idx, key)
        return (b'{"record":{%b},"changes":null,"action":"delete"%b%d}}' % (key, metadata, idx)).decode(
            "utf-8", "replace"
        )

    def read_shape(self, table: Table, types: Mapping[int, TypeInfo], columns: Sequence[str]) -> Shape:
        """Return the shape of rows that are read."""
        cache_key = (table, tuple(columns), len(types), types)  # a type that is altered is in another mapping
        found = self._backfill_shapes.get(table.name)
        if found is None or found[0] != cache_key:
            found = self._backfill_shapes[table.name] = (cache_key, shape_of_table(self._spec, table, columns, types))
        return found[1]

    def retry(self, data: str, into: ShapedChanges) -> str | None:
        """Retry a failure. Returns None and adds the result, or returns the error.

        Args:
            data: the stored data of the failure.
        """
        return self._builder.retry(data, into)

    def _add(self, shape: Shape, row: Sequence[Value], data: bytes, into: ShapedChanges, missing: Sequence[str]) -> int:
        try:
            key = shape.key(row)
        except NoKey as error:
            return self._builder.add_failure(None, data, error, into)
        return self._builder.add(key, data, into, missing, shape.table.name)

    # --- mode rows

    def _keep_unshaped(
        self,
        shape: Shape,
        row: Sequence[Any],
        transaction: Transaction,
        idx: int,
        error: Exception,
        into: ShapedChanges,
    ) -> int:
        """Keep a row as a failure with all values as text, after a bug in shaping. It must not hold up
        the slot for ever.
        """
        hint = f"the row is kept as a failure: headrace source postgres failures ls {self._spec.name}"
        log.error("row not shaped", source=self._spec.name, table=shape.table.name, exc_info=error, hint=hint)
        data = b'{"record":{%b}%b%d}}' % (shape.as_text(row), shape.metadata(transaction), idx)
        return self._builder.add_failure(None, data, error, into)


def tombstone(metadata: bytes, key: bytes) -> str:
    return (b'{"record":null%b,"key":{%b}}}' % (metadata, key)).decode("utf-8", "replace")
