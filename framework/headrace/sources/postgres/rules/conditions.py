"""Evaluates a source's condition on the messages of changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from headrace.model import conditions
from headrace.model.conditions import And, Compare, Condition, In, Match, Not, Null, Or
from headrace.model.conditions.paths import split
from headrace.model.conditions.patterns import UnsupportedPattern, compiled

_MESSAGE_PARTS = {"changes": ("record", "changes", "action", "metadata"), "rows": ("record", "metadata")}

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class SourceCondition:
    """A condition. `columns` are the columns of the record that it uses, and `parts` the members of the message."""

    def __init__(self, condition: Condition) -> None:
        self.condition = condition
        self.columns = frozenset(filter(None, map(_column, _leaves(condition))))
        self.parts = frozenset(path[1] for leaf in _leaves(condition) if len(path := split(leaf.field)) > 1)

    def evaluate(self, key: str, data: bytes, unknown: Collection[str] = ()) -> bool | None:
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
        return self._evaluate(self.condition, key, needed, unknown)

    def _needed(self, data: bytes) -> str:
        """Return the message with only the parts that the condition uses, since the evaluation parses
        all of its input.
        """
        message = _decode(data)
        parts = {name: value for name, value in message.items() if name in self.parts}
        record = parts.get("record")
        if record is not None and bytes(record) != b"null":
            columns = _decode(record)
            selected = {name: value for name, value in columns.items() if name in self.columns}
            parts["record"] = msgspec.Raw(_encode(selected))
        return _encode(parts).decode("utf-8", "replace")

    def _evaluate(self, condition: Condition, key: str, data: str, unknown: Collection[str]) -> bool | None:
        """Evaluate with Kleene's logic of true, false and unknown."""
        match condition:
            case And(parts) | Or(parts):
                results = {self._evaluate(part, key, data, unknown) for part in parts}
                decisive = isinstance(condition, Or)
                return decisive if decisive in results else None if None in results else not decisive
            case Not(inner):
                result = self._evaluate(inner, key, data, unknown)
                return None if result is None else not result
        return None if _column(condition) in unknown else conditions.matches(condition, key, data)

    def wrong(self, mode: str, selections: Sequence[Collection[str] | None]) -> str | None:
        """Return what is wrong with the condition, as the second half of a sentence, or None.

        Args:
            selections: for each table the columns that are captured, None for all.
        """
        parts = _MESSAGE_PARTS[mode]
        for leaf in _leaves(self.condition):
            root, *steps = split(leaf.field)
            if root not in ("data", "key"):
                return f"uses {leaf.field}, which a message gets only in the stream. It can use data and key"
            if root == "data" and (not steps or steps[0] not in parts):
                meant = f"data.record.{leaf.field.partition('.')[2]}" if steps else "data.record.total"
                return f"uses {leaf.field}, but with mode={mode!r} a message has {', '.join(parts)}. A column is {meant:.80}"
            if isinstance(leaf, Match) and (reason := _unsupported(leaf)):
                return reason
        for column in sorted(self.columns):
            if all(selection is not None and column not in selection for selection in selections):
                return f"uses data.record.{column}, which is not in columns. Add it there"
        return None


Leaf = Compare | In | Null | Match


def _unsupported(leaf: Match) -> str | None:
    """Return what is wrong with a pattern, as the second half of a sentence, or None."""
    try:
        compiled(leaf.op, leaf.value)
    except UnsupportedPattern as error:
        return f"has the regular expression {leaf.value!r:.80}, of which a source evaluates only what it reads as Postgres does: {error}"
    return None


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
