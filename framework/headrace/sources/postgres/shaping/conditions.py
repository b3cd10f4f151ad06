"""Evaluates a source's condition on the messages of changes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from headrace.model import conditions
from headrace.model.conditions import And, Compare, Condition, In, Match, Not, Null, Or
from headrace.model.conditions.paths import split

_PARTS = {"changes": ("record", "changes", "action", "metadata"), "rows": ("record", "metadata")}

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class SourceCondition:
    """A condition. `columns` are the columns of the record that it uses."""

    def __init__(self, condition: Condition) -> None:
        self.condition = condition
        self.columns = frozenset(filter(None, map(_column, _leaves(condition))))
        self._parts = frozenset(path[1] for leaf in _leaves(condition) if len(path := split(leaf.field)) > 1)

    def judge(self, key: str, data: bytes, unknown: Collection[str] = ()) -> bool | None:
        """Return whether a message meets the condition.

        Args:
            data: the message, as JSON text.
            unknown: columns with unknown values, which are not in the message.

        Returns:
            None if the result depends on an unknown value.
        """
        needed = self._needed(data)
        if self.columns.isdisjoint(unknown):
            return conditions.matches(self.condition, key, needed)
        return self._judge(self.condition, key, needed, unknown)

    def _needed(self, data: bytes) -> str:
        """Return the message with only the parts that the condition uses, since the evaluation parses
        all of its input.
        """
        message = _decode(data)
        parts = {name: value for name, value in message.items() if name in self._parts}
        record = parts.get("record")
        if record is not None and bytes(record) != b"null":
            columns = _decode(record)
            kept = {name: value for name, value in columns.items() if name in self.columns}
            parts["record"] = msgspec.Raw(_encode(kept))
        return _encode(parts).decode("utf-8", "replace")

    def _judge(self, condition: Condition, key: str, data: str, unknown: Collection[str]) -> bool | None:
        """Evaluate with Kleene's logic of true, false and unknown."""
        match condition:
            case And(parts) | Or(parts):
                found = {self._judge(part, key, data, unknown) for part in parts}
                decisive = isinstance(condition, Or)
                return decisive if decisive in found else None if None in found else not decisive
            case Not(inner):
                judged = self._judge(inner, key, data, unknown)
                return None if judged is None else not judged
        return None if _column(condition) in unknown else conditions.matches(condition, key, data)

    def wrong(self, mode: str, selections: Sequence[Collection[str] | None]) -> str | None:
        """Return what is wrong with the condition, as the second half of a sentence, or None.

        Args:
            selections: for each table the columns that are captured, None for all.
        """
        parts = _PARTS[mode]
        for leaf in _leaves(self.condition):
            root, *steps = split(leaf.field)
            if root not in ("data", "key"):
                return f"looks at {leaf.field}, which a message gets only in the stream: it may look at data and key"
            if root == "data" and (not steps or steps[0] not in parts):
                meant = f"data.record.{leaf.field.partition('.')[2]}" if steps else "data.record.total"
                return f"looks at {leaf.field}, but with mode={mode!r} a message has {', '.join(parts)}: a column is {meant:.80}"
            if isinstance(leaf, Match) and leaf.op == "regex":
                try:
                    re.compile(leaf.value)
                except re.error as error:
                    return f"has the regular expression {leaf.value!r:.80}, which can't be read ({error})"
        for column in sorted(self.columns):
            if all(selection is not None and column not in selection for selection in selections):
                return f"looks at data.record.{column}, which columns leaves out: name it there"
        return None


Leaf = Compare | In | Null | Match


def _leaves(condition: Condition) -> Iterator[Leaf]:
    match condition:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _leaves(part)
        case Not(inner):
            yield from _leaves(inner)
        case Compare() | In() | Null() | Match():
            yield condition


def _column(leaf: Condition) -> str | None:
    """Return the column of the record that a test uses, if it uses one."""
    path = split(leaf.field) if isinstance(leaf, Leaf) else ()
    return path[2] if len(path) > 2 and path[:2] == ("data", "record") else None
