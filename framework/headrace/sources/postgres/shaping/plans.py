"""A plan makes the message of a change whose values are short. It is made once for each layout of a table's changes.

The JSON is one template with a place for each value, since everything else is the same in all changes of a layout: the
names of the columns, the nulls, and the table's metadata. `plan_of` says which changes have a plan. The messages of all
others are made from their rows, and the messages of both ways are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

from headrace.sources.postgres.pgoutput.messages import Layout, Value
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges
from headrace.sources.postgres.shaping.shapes import Shape
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.values.scalars import integer, quoted

Append = Callable[[str, bytes, ShapedChanges], Any]

_NULL: Final = -1  # indexes of a layout
_UNCHANGED: Final = -2


def plan_of(shape: Shape, layout: Layout, spec: PostgresSpec, append: Append) -> Plan | None:
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
    return Plan(shape, layout, action if spec.mode == "changes" else None, append)


class Plan:
    """Makes the messages of the changes of one layout.

    Args:
        shape: the table's shape.
        layout: the layout.
        action: `insert` or `update`, with which messages also have the old values. None in mode `rows`, where a message
            is only the new row, and its key must be that of the old row.
        append: adds a message to a batch.
    """

    def __init__(self, shape: Shape, layout: Layout, action: str | None, append: Append) -> None:
        self._append = append
        self._key = shape.make_key(layout.new)
        self._old_key = shape.make_key(layout.old) if action is None and layout.old is not None else None
        self._compared = None
        self._converters = []
        members, indexes = [], []
        for column, name, convert in shape.fields:
            index = layout.new[column]
            member = name.replace(b"%", b"%%")
            if index == _NULL:
                members.append(member + b"null")
                continue
            members.append(member + (b'"%b"' if convert is quoted else b"%b"))
            indexes.append(index)
            if convert is not quoted and convert is not integer:
                self._converters.append((len(indexes) - 1, convert))
        self._pick = _picker(indexes)
        template = b'{"record":{' + b",".join(members) + b"}"
        if action is not None:
            changes = b"null"
            if layout.old is not None:
                changes = b"{%b}"
                self._compared = [
                    (name, convert, layout.old[column], layout.new[column]) for column, name, convert in shape.fields
                ]
            template += b',"changes":' + changes + b',"action":"' + action.encode() + b'"'
        self._template = template + shape.head.replace(b"%", b"%%") + b"%b%d}}"

    def add(self, values: Sequence[Value], commit: bytes, idx: int, into: ShapedChanges) -> bool:
        """Add the message of a change. Returns False, or raises `NoKey`, if its rows have to be looked at.

        Args:
            values: the values of its layout.
            commit: the `commit_members` of its transaction.
            idx: the number of the message in the transaction.
        """
        key = self._key(values)
        if self._old_key is not None and self._old_key(values) != key:
            return False
        picked = self._pick(values)
        if self._converters:
            converted = list(picked)
            for index, convert in self._converters:
                converted[index] = convert(converted[index])
            picked = tuple(converted)
        if self._compared is None:
            data = self._template % (*picked, commit, idx)
        else:
            changes = [
                name + (b"null" if (before := values[old]) is None else convert(before))  # type: ignore[arg-type]
                for name, convert, old, new in self._compared
                if values[old] != values[new]
            ]
            data = self._template % (*picked, b",".join(changes), commit, idx)
        self._append(key, data, into)
        return True


def _picker(indexes: Sequence[int]) -> Callable[[Sequence[Value]], tuple[Any, ...]]:
    if len(indexes) > 1:
        return itemgetter(*indexes)  # the fastest, but with one index it returns the value alone
    return lambda values: tuple([values[index] for index in indexes])
