"""Offsets of a streaming query, as they are in its checkpoint.

    {"stream": "0b1f…", "position": 17}                          one stream
    {"streams": {"orders": {"stream": "0b1f…", "position": 17},
                 "payments": {"stream": "9c2e…", "position": 4, "earliest": true}}}

`stream` is the unique id of a stream. Everything up to `position` was read, or lies before the first message of a query that
began at the earliest one. Both forms are read whatever the query's streams are, so a query of one stream can become
one of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.model.errors import InvalidInput


class Position(msgspec.Struct, frozen=True):
    """The position in one stream.

    Attributes:
        uid: the unique id of the stream.
        seq: the last seq that was read.
        earliest: whether the query begins here with the earliest message. Messages that are removed before the first
            read then do not count as lost.
        name: the name of the stream, or an empty text if the offset does not have it.
    """

    uid: str
    seq: int
    earliest: bool = False
    name: str = ""


def parse(offset: Mapping[str, Any]) -> dict[str, Position]:
    """The positions of an offset, by the unique id of the stream.

    Raises:
        InvalidInput: it is not an offset of this data source.
    """
    try:
        if "streams" in offset:
            found = [_position(one, name) for name, one in offset["streams"].items()]
        else:
            found = [_position(offset, "")]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidInput(
            f"The checkpoint holds {str(dict(offset))!r:.200}, which is not an offset of Headrace. Start again with a new checkpoint."
        ) from None
    return {one.uid: one for one in found}


def written(positions: Iterable[Position], *, single: bool) -> dict[str, Any]:
    """The offset of these positions. The same positions always make the same text, as Spark compares it."""
    found = sorted(positions, key=lambda one: (one.name, one.uid))
    if single and len(found) == 1:
        return _entry(found[0])
    return {"streams": {one.name: _entry(one) for one in found}}


def _position(entry: Mapping[str, Any], name: str) -> Position:
    return Position(str(entry["stream"]), int(entry["position"]), bool(entry.get("earliest")), name)


def _entry(position: Position) -> dict[str, Any]:
    entry: dict[str, Any] = {"stream": position.uid, "position": position.seq}
    return {**entry, "earliest": True} if position.earliest else entry
