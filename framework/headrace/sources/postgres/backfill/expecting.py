"""Makes what the stream should have of a chunk that was read for a verification. Plain code without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from headrace.sources.postgres.backfill.chunks import Chunk, LookedUp, Verified
from headrace.sources.postgres.pgoutput.messages import UNCHANGED, Row
from headrace.sources.postgres.rules.conditions import SourceCondition
from headrace.sources.postgres.rules.keys import NoKey, RowKeyTemplate
from headrace.sources.postgres.shaping.shaped_changes import Comparison, Folding, ShapedChanges, Transaction
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.shaping.shapes import Shape
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table
from headrace.sources.postgres.values import TypeInfo
from headrace.sources.templates import token
from headrace.store import CapturedMessage, TableInStream


def unverifiable(spec: PostgresSpec, table: Table | None = None) -> str | None:
    """Return why a stream can't be compared with a table, or None.

    Args:
        table: the table. Without it, whether no table of the source can be compared.
    """
    if spec.mode == "rows":
        return None
    if spec.transform is not None:
        return "In mode 'changes', messages that a transform has made can't be compared with rows."
    if not {"insert", "update"} <= set(spec.actions):
        return "The stream does not have all inserts and updates, since actions leaves some out, so it can't be compared with rows."
    if spec.condition is not None and SourceCondition(spec.condition).parts & {"changes", "action"}:
        return "The source's where depends on the kind of a change, so the stream can't be compared with rows."
    selected = None if table is None else spec.columns.get(table.name)
    left_out = [] if table is None or selected is None else [name for name in table.key if name not in selected]
    if left_out:
        return f"The source's columns leave out {left_out[0]!r}, which is in the key of the table, so messages can't be compared with rows."
    return None


def in_stream(spec: PostgresSpec, table: Table) -> TableInStream:
    """Return how messages name a table."""
    prefix = None if spec.key is not None else f"{token(table.schema)}.{token(table.relation)}."
    return TableInStream(stream=spec.stream, schema=table.schema, relation=table.relation, prefix=prefix)


def key_columns(spec: PostgresSpec, table: Table) -> list[str]:
    """Return the columns of a row that its key and its message's key are made of."""
    templated = () if spec.key is None else RowKeyTemplate(spec.key).columns
    return list(dict.fromkeys((*table.key, *templated)))


class Expectations:
    """Makes the comparisons of one source.

    Args:
        spec: its settings.
        shaper: its shaper.
    """

    def __init__(self, spec: PostgresSpec, shaper: Shaper) -> None:
        self._spec = spec
        self._shaper = shaper
        self._mode_rows = spec.mode == "rows"
        deletes_all = spec.where is None and {"delete", "truncate"} <= set(spec.actions)
        self._deletes = spec.deletes == "tombstone" if self._mode_rows else deletes_all

    def comparison(
        self, chunk: Chunk, how: Verified, types: Mapping[int, TypeInfo], transaction: Transaction, index: int
    ) -> Comparison:
        """Return the comparison of a chunk.

        Args:
            types: the types of its columns that are not built in.
            transaction: the one that marks its place in the WAL.
            index: number of messages of the batch that come before it.
        """
        shape = self._shaper.read_shape(chunk.table, types, chunk.columns)
        expected, absent, unchecked = ShapedChanges(), dict[str, tuple[int | None, str]](), 0
        rows: list[str] = []
        for idx, row in enumerate(chunk.rows):
            try:
                excluded = self._shaper.expect(shape, row, transaction, idx, expected)
            except NoKey:
                unchecked += 1
                continue
            if excluded is None:
                rows += [shape.key_array(row).decode("utf-8", "replace")] * (len(expected.keys) - len(rows))
            elif self._mode_rows:
                absent[excluded] = None, self._shaper.gone(shape, shape.key_record(row), transaction, idx)
        for idx, one in enumerate(how.messages):
            gone = self._gone(shape, one)
            if gone is None:
                unchecked += 1
            elif gone:
                absent[one.message.key] = one.message.seq, self._shaper.gone(shape, gone, transaction, idx)
        folding = None if self._mode_rows else Folding(chunk.table.key, rows, how.fold)
        return Comparison(
            index=index,
            table=in_stream(self._spec, chunk.table),
            chunk=chunk.done,
            repair=how.repair,
            missing=how.missing,
            folding=folding,
            keys=expected.keys,
            data=expected.data,
            as_text=self._spec.transform is None,
            absent=absent,
            deletes=self._deletes,
            unchecked=unchecked + len(expected.failures),
            changed_rows=self._changed_rows(shape, chunk, transaction),
        )

    def _changed_rows(
        self, shape: Shape, chunk: Chunk, transaction: Transaction
    ) -> dict[str, tuple[str, frozenset[str]]]:
        if not self._mode_rows or self._spec.transform is not None:
            return {}
        found: dict[str, tuple[str, frozenset[str]]] = {}
        for row, left_out in chunk.changed_rows:
            expected = ShapedChanges()
            with suppress(NoKey):
                self._shaper.expect(shape, row, transaction, 0, expected)
            found |= {key: (data, left_out) for key, data in zip(expected.keys, expected.data, strict=True)}
        return found

    def _gone(self, shape: Shape, one: LookedUp) -> bytes | None:
        """Return the members of the JSON of a key whose row is gone. Empty if it is not gone, and None if that is not
        known.
        """
        in_message = _members(one.message, shape)
        if one.key is None:
            return in_message if one.impossible else None
        values: dict[int, bytes] = dict(zip(shape.key_indexes, one.key, strict=True))
        looked_up: Row = [values.get(index, UNCHANGED) for index in range(shape.width)]
        key = shape.key_record(looked_up)
        if self._mode_rows:
            if one.row is not None and shape.key(one.row) == one.message.key:
                return b""
            by_key = self._spec.key is None and shape.key(looked_up) == one.message.key
            return key if by_key or key == in_message else None
        if key == in_message:
            return key if one.row is None else b""
        # A column has one kind of JSON, so no row has a number as its key where others have text.
        return in_message if in_message is not None and _kinds(key) != _kinds(in_message) else None


def _members(message: CapturedMessage, shape: Shape) -> bytes | None:
    """Return the members of the JSON of the key that a message has. None if it lacks some."""
    names, values = [shape.names[index] for index in shape.key_indexes], message.values or {}
    if not all(name in values and bytes(values[name]) != b"null" for name in names):
        return None
    return b",".join(msgspec.json.encode(name) + b":" + bytes(values[name]) for name in names)


def _kinds(members: bytes) -> list[type]:
    return [type(value) for value in msgspec.json.decode(b"{%b}" % members).values()]
