"""Offsets of a streaming query, as they are in its checkpoint.

    {"stream": "0b1f…", "position": 17}                          one stream
    {"streams": {"orders": {"stream": "0b1f…", "position": 17},
                 "payments": {"stream": "9c2e…", "position": 4, "earliest": true}}}

`stream` is the unique id of a stream. Everything up to `position` was read, or lies before the first message of a query that
began at the earliest one. Both forms are read whatever the query's streams are, so a query of one stream can become
one of several.

Each position also has `"last": [16, 1893456000000000]`, the seq and the time of the last message up to it. A database that is
older than the checkpoint, as after a restore or a failover to a standby that lagged, draws seqs again. Another message is
then there, and the query would skip those up to the position. Offsets of release 0.1 have no `last`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.model.errors import InvalidInput


class Witness(NamedTuple):
    """The last message of a stream up to a position.

    Attributes:
        seq: its seq, or 0 if there was none.
        written: its time of publication in microseconds since 1970, or 0.
    """

    seq: int
    written: int

    def is_contradicted_by(self, found: Witness) -> bool:
        """Whether the database lacks the history of this witness, by the last message up to the same position now.

        The messages up to a position are resolved, so none is added below it. The witness itself may be erased, or be
        removed by retention.
        """
        return found.seq > self.seq or (found.seq == self.seq and found.written != self.written)


class Position(msgspec.Struct, frozen=True):
    """The position in one stream.

    Attributes:
        uid: the unique id of the stream.
        seq: the last seq that was read.
        earliest: whether the query begins here with the earliest message. Messages that are removed before the first
            read then do not count as lost.
        name: the name of the stream, or an empty text if the offset does not have it.
        last: the last message up to `seq`, or None if it is not known.
    """

    uid: str
    seq: int
    earliest: bool = False
    name: str = ""
    last: Witness | None = None


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
    seq, written = entry.get("last") or (0, 0)
    last = Witness(int(seq), int(written)) if "last" in entry else None
    return Position(str(entry["stream"]), int(entry["position"]), bool(entry.get("earliest")), name, last)


def _entry(position: Position) -> dict[str, Any]:
    entry: dict[str, Any] = {"stream": position.uid, "position": position.seq}
    if position.last is not None:
        entry["last"] = list(position.last)
    return {**entry, "earliest": True} if position.earliest else entry
