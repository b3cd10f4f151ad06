"""A plan makes the message of a change whose values are short. It is made once for each layout of a table's changes.

The JSON is one template with a place for each value, since everything else is the same in all changes of a layout: the
names of the columns, the nulls, and the table's metadata. `plan_of` says which changes have a plan. The messages of all
others are made from their rows, and the messages of both ways are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from headrace.sources.postgres.pgoutput.messages import Layout, Row
from headrace.sources.postgres.shaping.shaped_changes import Transaction
from headrace.sources.postgres.shaping.shapes import Shape
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.values.scalars import integer, quoted

_NULL: Final = -1  # indexes of a layout
_UNCHANGED: Final = -2


def plan_of(shape: Shape, layout: Layout, spec: PostgresSpec) -> Plan | None:
    """Return the plan of a layout, or None if such changes have none: those without all values in their new row, those
    with only a key in their old row, and those whose old row may need a correction.
    """
    action = "insert" if layout.is_insert else "update"
    rows = (layout.new,) if layout.old is None else (layout.new, layout.old)
    if (
        any(len(row) != shape.width or _UNCHANGED in row for row in rows)
        or layout.key_only
        or (layout.old is not None and shape.table.partitioned)
        or (spec.mode == "changes" and action not in spec.actions)
    ):
        return None
    return Plan(shape, layout, spec.mode == "changes", action)


class Plan:
    """Makes the messages of the changes of one layout.

    Args:
        shape: the table's shape.
        layout: the layout.
        has_action: whether messages have the action and the changed values, as in mode `changes`.
        action: `insert` or `update`.

    Attributes:
        key: makes the key of a change's new row from the values of the change. Raises `NoKey`.
        old_key: the same of the old row. None if there is no old row.
    """

    def __init__(self, shape: Shape, layout: Layout, has_action: bool, action: str) -> None:
        self._shape = shape
        members, indexes, self._converters = [], [], []
        for column, name, convert in shape.fields:
            index = layout.new[column]
            member = name.replace(b"%", b"%%")
            if index == _NULL:
                members.append(member + b"null")
                continue
            members.append(member + (b'"%b"' if convert is quoted else b"%b"))
            indexes.append(index)
            if convert is not quoted and convert is not integer:
                self._converters.append((index, convert))
        self._pick = _picker(indexes)
        old = layout.old
        self._compared = (
            [(name, convert, old[column], layout.new[column]) for column, name, convert in shape.fields]
            if has_action and old is not None
            else None
        )
        template = b'{"record":{' + b",".join(members) + b"}"
        if has_action:
            changes = b"null" if self._compared is None else b"{%b}"
            template += b',"changes":' + changes + b',"action":"' + action.encode() + b'"'
        self._template = template + b"%b%d}}"
        self.key = shape.make_key(layout.new)
        self.old_key = None if old is None else shape.make_key(old)

    def message(self, values: Row, transaction: Transaction, idx: int) -> bytes:
        """Return the message of a change.

        Args:
            values: the values of its layout.
            transaction: its transaction.
            idx: the number of the message in the transaction.
        """
        metadata = self._shape.metadata(transaction)
        if self._compared is None:
            return self._template % (*self._pick(self._converted(values)), metadata, idx)
        changes = b",".join(
            [
                name + (b"null" if (before := values[old]) is None else convert(before))  # type: ignore[arg-type]
                for name, convert, old, new in self._compared
                if values[old] != values[new]
            ]
        )
        return self._template % (*self._pick(self._converted(values)), changes, metadata, idx)

    def _converted(self, values: Row) -> Row:
        if not self._converters:
            return values
        values = values.copy()
        for index, convert in self._converters:
            values[index] = convert(values[index])  # type: ignore[arg-type]
        return values


def _picker(indexes: Sequence[int]) -> Callable[[Row], Sequence[Any]]:
    if len(indexes) > 1:
        return itemgetter(*indexes)  # the fastest, but with one index it returns the value alone
    return lambda values: [values[index] for index in indexes]
