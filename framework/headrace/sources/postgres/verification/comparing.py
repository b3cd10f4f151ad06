"""Compares rows with the stream, in the transaction that has appended everything up to their place in the WAL.

A row whose message has the same text is found equal by the database, by checksum. Other messages are read and compared
by value. A column that is missing counts as null, since an `alter table … add column` changes no message.
"""

from __future__ import annotations

from decimal import Decimal
from hashlib import sha256
from typing import Any, Literal

import msgspec

from headrace import store
from headrace.model.capture import Differences
from headrace.sources.postgres.shaping.shaped_changes import Comparison, ShapedChanges

_METADATA = ',"metadata":{'
_START = len('{"record":')

_decode = msgspec.json.Decoder(float_hook=Decimal).decode


def split_at_comparison(batch: ShapedChanges) -> tuple[ShapedChanges, Comparison | None, ShapedChanges | None]:
    """Split a batch at its first comparison. Returns what comes before, the comparison, and the rest, which has the
    position. The missing values of a row that comes after a repair are those of the repaired row.
    """
    for place, one in enumerate(batch.truncated):
        if isinstance(one, Comparison):
            first = ShapedChanges(
                keys=batch.keys[: one.index],
                data=batch.data[: one.index],
                failures=[failure for failure in batch.failures if failure.index <= one.index],
                incomplete=[row for row in batch.incomplete if row.index < one.index],
                truncated=batch.truncated[:place],
            )
            rest = msgspec.structs.replace(
                batch,
                keys=batch.keys[one.index :],
                data=batch.data[one.index :],
                failures=_from(one.index, batch.failures[len(first.failures) :]),
                incomplete=_from(one.index, batch.incomplete[len(first.incomplete) :]),
                truncated=_from(one.index, batch.truncated[place + 1 :]),
            )
            return first, one, rest
    return batch, None, None


def _from(index: int, found: list[Any]) -> list[Any]:
    return [msgspec.structs.replace(one, index=one.index - index) for one in found]


async def compare(executor: store.Executor, comparison: Comparison) -> ShapedChanges:
    """Compare rows and messages with the stream. Returns the messages that repair it, if it is to be repaired, and the
    chunk with its differences.
    """
    found, repaired = Differences(unchecked=comparison.unchecked), ShapedChanges()
    for kind, indexes in (await _compare_rows(executor, comparison)).items():
        found.add(kind, [comparison.keys[index] for index in indexes])
        repaired.keys += [comparison.keys[index] for index in indexes]
        repaired.data += [comparison.data[index] for index in indexes]
    extra = await _find_extra(executor, comparison)
    if comparison.tombstones:
        found.add("extra", extra)
        repaired.keys += extra
        repaired.data += [comparison.absent[key][1] for key in extra]
    else:
        found.kept = len(extra)
    if not comparison.repair:
        repaired = ShapedChanges()
    repaired.chunks.append(msgspec.structs.replace(comparison.chunk, published=len(repaired.keys), differences=found))
    return repaired


async def _compare_rows(
    executor: store.Executor, comparison: Comparison
) -> dict[Literal["differs", "missing"], list[int]]:
    """Return the indexes of the rows whose messages differ, and of those that have none."""
    found: dict[Literal["differs", "missing"], list[int]] = {"differs": [], "missing": []}
    if comparison.keys:
        digests = [_digest(data) if comparison.as_text else None for data in comparison.data]
        stored = await store.compare_messages(executor, comparison.table.stream, comparison.keys, digests)
        for index in sorted(stored):
            kind = _difference(comparison.data[index], stored[index])
            if kind is not None and (comparison.complete or stored[index] is not None):
                found[kind].append(index)
    return found


async def _find_extra(executor: store.Executor, comparison: Comparison) -> list[str]:
    """Return the keys of messages that are in the stream, and should not be."""
    absent = [key for key in comparison.absent if key not in comparison.keys]
    if not absent:
        return []
    live = await store.live_messages(executor, comparison.table, absent, [comparison.absent[key][0] for key in absent])
    return [key for key in absent if key in live]


def _digest(data: str) -> bytes:
    """Return the checksum of a message's record."""
    return sha256(data[_START : data.rfind(_METADATA)].encode()).digest()


def _difference(expected: str, stored: str | None) -> Literal["differs", "missing"] | None:
    """Return how a message in the stream differs from the one that is expected."""
    if stored is None:
        return "missing"
    try:
        now, before = _content(expected), _content(stored)
    except (ValueError, RecursionError):  # numbers or nesting that Python can't read
        return None if expected == stored else "differs"
    if before is None and now is not None:
        return "missing"
    return None if _same(now, before) else "differs"


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal. Python also counts true as 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _content(text: str) -> Any:
    """Return the part of a message that depends on the row: its record, without nulls. Of what a transform has made of
    it, everything but the metadata.
    """
    message = _decode(text)
    if not isinstance(message, dict):
        return message
    content = {name: value for name, value in message.items() if name != "metadata"}
    record = content["record"] if content.keys() == {"record"} else content
    return _without_nulls(record) if isinstance(record, dict) else record


def _without_nulls(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None}
