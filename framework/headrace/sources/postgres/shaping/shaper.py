"""The shaper makes messages of changes, and of rows that a backfill reads. Plain code without I/O.

With mode `changes` a change becomes one message that describes the change. With mode `rows` it
becomes the current row, under the row's key, and possibly a tombstone. A message is checked against
the condition, and then transformed into what is published. Tombstones are not transformed, since
they have no row. A change that can't be made into a message becomes a failure beside it. No error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.model.log import Log
from headrace.sources.postgres import table_names
from headrace.sources.postgres.pgoutput.messages import (
    UNCHANGED,
    Change,
    Delete,
    Insert,
    Layout,
    Relation,
    Row,
    ShortChange,
    Truncate,
    Update,
)
from headrace.sources.postgres.pgoutput.short_changes import MAX_LAYOUTS
from headrace.sources.postgres.rules.keys import NoKey, old_key_missing
from headrace.sources.postgres.rules.transform_watchdog import TransformStuck
from headrace.sources.postgres.shaping.message_builder import MAX_MESSAGE_BYTES
from headrace.sources.postgres.shaping.plans import Plan, plan_of
from headrace.sources.postgres.shaping.row_shaper import RowShaper, tombstone
from headrace.sources.postgres.shaping.rows import filled, key_changed, old_row, with_partition_identity
from headrace.sources.postgres.shaping.shaped_changes import IncompleteRow, ShapedChanges, Transaction, TruncatedTable
from headrace.sources.postgres.shaping.shapes import Shape, commit_members, shape_of_relation
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.tables import Table
from headrace.sources.postgres.values import TypeInfo
from headrace.sources.templates import token

log = Log("headrace")


class Shaper(RowShaper):
    """Makes the messages of one source, of its changes and of rows that are read.

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
        super().__init__(spec, transform, max_message_bytes=max_message_bytes)
        self._tables = frozenset(map(table_names.split, spec.tables))
        self._shapes: dict[int, Shape] = {}
        self._plans: dict[Layout, Plan] = {}
        self._transaction: Transaction | None = None  # which `_commit` is of
        self._commit = b""
        self._actions = frozenset(spec.actions)

    def set_relation(self, relation: Relation, table: Table | None, types: Mapping[int, TypeInfo]) -> None:
        """Store the current definition of a relation.

        Args:
            relation: the relation message.
            table: its table. Changes are skipped if it is None, or is not a table of the source.
            types: the types of its columns that are not built in.
        """
        self._plans.clear()
        if table is None or (table.schema, table.relation) not in self._tables:
            self._shapes.pop(relation.oid, None)
        else:
            self._shapes[relation.oid] = shape_of_relation(self._spec, relation, table, types)

    def change(self, change: Change, transaction: Transaction, idx: int, into: ShapedChanges) -> int:
        """Add the messages of a change.

        Args:
            transaction: the change's transaction. All changes of a transaction have the same
                object.
            idx: the number of the change's first message in the transaction.
            into: the batch to which messages, failures and open work are added.

        Returns:
            How many numbers are used up, by messages and failures.
        """
        if type(change) is ShortChange:
            try:
                plan = self._plans.get(change.layout) or self._new_plan(change.layout)
                if transaction is not self._transaction:
                    self._commit, self._transaction = commit_members(transaction), transaction
                if plan is not None and plan.add(change.values, self._commit, idx, into):
                    return 1
            except Exception as error:  # the same happens below, where it is handled
                log.debug("change without a plan", source=self._spec.name, error=error)
            change = change.rows()
        if type(change) is Truncate:
            used = 0
            for oid in change.relations:
                used += self._truncate(oid, transaction, idx + used, into)
            return used
        shape = self._shapes.get(change.relation)
        if shape is None:
            return 0
        if shape.table.partitioned:
            change = with_partition_identity(shape, change)
        try:
            return self._shape_change(shape, change, transaction, idx, into)
        except TransformStuck:
            raise
        except Exception as error:
            row = change.old if isinstance(change, Delete) else change.new
            return self._keep_unshaped(shape, row, transaction, idx, error, into)

    def _new_plan(self, layout: Layout) -> Plan | None:
        shape = self._shapes.get(layout.relation)
        if shape is None or not self._builder.plain:
            return None
        plan = plan_of(shape, layout, self._spec, self._builder.append)
        if plan is not None:
            if len(self._plans) >= MAX_LAYOUTS:
                self._plans.clear()
            self._plans[layout] = plan
        return plan

    def _shape_change(
        self, shape: Shape, change: Insert | Update | Delete, transaction: Transaction, idx: int, into: ShapedChanges
    ) -> int:
        if self._mode_rows:
            return self._row(shape, change, transaction, idx, into)
        if isinstance(change, Update):
            return self._update(shape, change, transaction, idx, into) if "update" in self._actions else 0
        if isinstance(change, Insert):
            return self._insert(shape, change, transaction, idx, into) if "insert" in self._actions else 0
        return self._delete(shape, change, transaction, idx, into) if "delete" in self._actions else 0

    # --- mode changes

    def _insert(self, shape: Shape, change: Insert, transaction: Transaction, idx: int, into: ShapedChanges) -> int:
        new = change.new
        if len(new) != shape.width or UNCHANGED in new:
            new = shape.padded(new)
            missing = shape.missing(new)
            record = shape.known(new)
        else:
            missing = []
            record = shape.record(new)
        metadata, unchanged = shape.metadata(transaction), _unchanged(missing)
        data = b'{"record":{%b},"changes":null,"action":"insert"%b%d%b}}' % (record, metadata, idx, unchanged)
        return self._add(shape, new, data, into, missing)

    def _update(self, shape: Shape, change: Update, transaction: Transaction, idx: int, into: ShapedChanges) -> int:
        new, old = change.new, change.old
        if len(new) != shape.width or (old is not None and len(old) != shape.width) or UNCHANGED in new:
            new, old = filled(shape, change)
            missing = shape.missing(new)
            record = shape.known(new)
        else:
            missing = []
            record = shape.record(new)
        if old is None:
            changes = b"null"
        elif change.key_only:
            changes = b"{%b}" % shape.changed_identity(new, old)
        else:
            changes = b"{%b}" % shape.changed(new, old)
        metadata, unchanged = shape.metadata(transaction), _unchanged(missing) if missing else b""
        data = b'{"record":{%b},"changes":%b,"action":"update"%b%d%b}}' % (record, changes, metadata, idx, unchanged)
        return self._add(shape, new, data, into, missing)

    def _delete(self, shape: Shape, change: Delete, transaction: Transaction, idx: int, into: ShapedChanges) -> int:
        old = old_row(shape, change.old, change.key_only)
        record, metadata = shape.known(old), shape.metadata(transaction)
        data = b'{"record":{%b},"changes":null,"action":"delete"%b%d}}' % (record, metadata, idx)
        return self._add(shape, old, data, into, shape.missing(old))

    def _row(
        self, shape: Shape, change: Insert | Update | Delete, transaction: Transaction, idx: int, into: ShapedChanges
    ) -> int:
        metadata = shape.metadata(transaction)
        if isinstance(change, Insert):
            new = shape.padded(change.new)
            return self._version(shape, new, metadata, idx, into) or 0
        if isinstance(change, Delete):
            return self._deleted(shape, old_row(shape, change.old, change.key_only), metadata, idx, into)
        new, old = filled(shape, change)
        if old is None:
            used = self._version(shape, new, metadata, idx, into)
            return self._tombstone(shape, new, metadata, idx, into) if used is None else used
        old = old_row(shape, old, change.key_only)
        if key_changed(shape, new, old):
            used = self._deleted(shape, old, metadata, idx, into)
            return used + (self._version(shape, new, metadata, idx + used, into, key_changed=True) or 0)
        used = self._version(shape, new, metadata, idx, into)
        return self._deleted(shape, old, metadata, idx, into) if used is None else used

    def _version(
        self, shape: Shape, new: Row, metadata: bytes, idx: int, into: ShapedChanges, *, key_changed: bool = False
    ) -> int | None:
        """Add the current row. Returns how many numbers are used up, or None if the row does not meet
        the condition.
        """
        data = b'{"record":{%b}%b%d}}' % (shape.known(new), metadata, idx)
        missing = shape.missing(new)
        try:
            key = shape.key(new)
        except NoKey as error:
            return self._builder.add_failure(None, data, error, into)
        if missing:
            values = tuple(value for index in shape.key_indexes if isinstance(value := new[index], bytes))
            into.incomplete.append(IncompleteRow(len(into.keys), shape.table, values, missing, key_changed))
            into.keys.append(key)
            into.data.append(data.decode("utf-8", "replace"))
            return 1
        meets = self._builder.meets(key, data)
        if isinstance(meets, Exception):
            return self._builder.add_failure(key, data, meets, into)
        return self._builder.add_transformed(key, data, into) if meets else None

    def _deleted(self, shape: Shape, old: Row, metadata: bytes, idx: int, into: ShapedChanges) -> int:
        """Add a tombstone if the source has them, unless the row is known not to have met the
        condition before.
        """
        if self._tombstones and not self._builder.plain:
            data = b'{"record":{%b}%b%d}}' % (shape.known(old), metadata, idx)
            try:
                if self._builder.meets(shape.key(old), data, shape.missing(old)) is False:
                    return 0
            except NoKey:
                pass  # `_tombstone` reports it
        return self._tombstone(shape, old, metadata, idx, into)

    def _tombstone(self, shape: Shape, old: Row, metadata: bytes, idx: int, into: ShapedChanges) -> int:
        """Add a tombstone if the source has them."""
        if not self._tombstones:
            return 0
        try:
            key = shape.key(old)
            if any(old[index] is UNCHANGED for index in shape.key_indexes):
                raise old_key_missing(shape.table.name)
        except NoKey as error:
            return self._builder.add_failure(
                None, b'{"record":{%b}%b%d}}' % (shape.known(old), metadata, idx), error, into
            )
        into.keys.append(key)
        into.data.append(tombstone(metadata + b"%d" % idx, shape.key_record(old)))
        return 1

    def finish_incomplete(self, shaped_changes: ShapedChanges) -> None:
        """Check and transform the rows of `shaped_changes.incomplete`, after their missing values were filled
        in. Some become tombstones, failures, or nothing. All others keep their order. Afterwards
        `shaped_changes.incomplete` is empty.
        """
        incomplete, shaped_changes.incomplete = {one.index: one for one in shaped_changes.incomplete}, []
        if self._builder.plain or not incomplete:
            return
        finished, indexes, failed = ShapedChanges(failures=shaped_changes.failures), [], len(shaped_changes.failures)
        for index, (key, text) in enumerate(zip(shaped_changes.keys, shaped_changes.data, strict=True)):
            indexes.append(len(finished.keys))
            if index in incomplete:
                self._finish_row(incomplete[index], key, text.encode("utf-8", "replace"), finished)
            else:
                finished.keys.append(key)
                finished.data.append(text)
        indexes.append(len(finished.keys))
        shaped_changes.keys, shaped_changes.data = finished.keys, finished.data
        shaped_changes.truncated = [
            msgspec.structs.replace(one, index=indexes[one.index]) for one in shaped_changes.truncated
        ]
        before = shaped_changes.failures[:failed]
        shaped_changes.failures[:failed] = [msgspec.structs.replace(one, index=indexes[one.index]) for one in before]

    def _finish_row(self, row: IncompleteRow, key: str, data: bytes, into: ShapedChanges) -> None:
        meets = self._builder.meets(key, data)
        if isinstance(meets, Exception):
            self._builder.add_failure(key, data, meets, into)
        elif meets:
            self._builder.add_transformed(key, data, into)
        elif self._tombstones:
            shape = next((one for one in self._shapes.values() if one.table.oid == row.table.oid), None)
            if shape is not None:
                into.keys.append(key)
                metadata = msgspec.json.decode(data, type=_Version).metadata
                into.data.append(tombstone(b',"metadata":' + bytes(metadata)[:-1], shape.key_members(row.key)))

    # --- both modes

    def _truncate(self, oid: int, transaction: Transaction, idx: int, into: ShapedChanges) -> int:
        shape = self._shapes.get(oid)
        if shape is None:
            return 0
        metadata = shape.metadata(transaction) + b"%d" % idx
        if self._mode_rows:
            if self._tombstones:
                text = metadata.removeprefix(b',"metadata":').decode() + "}"
                into.truncated.append(TruncatedTable(len(into.keys), shape.table, text))
            return 0
        if "truncate" not in self._actions:
            return 0
        key = f"{token(shape.table.schema)}.{token(shape.table.relation)}"
        data = b'{"record":null,"changes":null,"action":"truncate"%b}}' % metadata
        return self._builder.add(key, data, into, (), shape.table.name)

    def touched_keys(self, change: Change) -> list[tuple[str, tuple[bytes, ...], frozenset[str]]]:
        """Return the rows that a change touches: the name of the table, the values of its key as
        text, and the columns whose values the stream has, if the change leaves them out. For an update these are the
        new key and, if it changed, the old one. The empty key stands for all rows of a truncated table.
        """
        left_out = frozenset[str]()
        if isinstance(change, Truncate):
            return [(self._shapes[oid].table.name, (), left_out) for oid in change.relations if oid in self._shapes]
        shape = self._shapes.get(change.relation)
        if shape is None or not shape.key_indexes:
            return []
        if type(change) is ShortChange:
            change = change.rows()
        rows: list[Row] = []
        if isinstance(change, Delete):
            rows.append(old_row(shape, change.old, change.key_only))
        elif isinstance(change, Insert):
            rows.append(shape.padded(change.new))
        else:
            new, old = filled(shape, change)
            rows.append(new)
            if old is not None:
                rows.append(old_row(shape, old, change.key_only))
        keys = dict.fromkeys(tuple(row[index] for index in shape.key_indexes) for row in rows)
        if self._mode_rows and len(keys) == 1 and UNCHANGED in rows[0] and not isinstance(change, Delete):
            left_out = frozenset(name for name, value in zip(shape.names, rows[0], strict=False) if value is UNCHANGED)
        return [(shape.table.name, key, left_out) for key in keys if all(isinstance(value, bytes) for value in key)]  # type: ignore[misc]


class _Version(msgspec.Struct):
    metadata: msgspec.Raw


def _unchanged(missing: Sequence[str]) -> bytes:
    """Return the member of the metadata that lists missing values."""
    return b',"unchanged":' + msgspec.json.encode(missing) if missing else b""
