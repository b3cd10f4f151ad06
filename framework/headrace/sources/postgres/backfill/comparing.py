"""Compares rows with the stream, in the transaction that has appended everything up to their place in the WAL.

A row whose message has the same text is found equal by the database, by checksum. Other messages are read and compared
by value. The columns of the row count. One that a message lacks is null, since an `alter table … add column`
changes no message, and for the same reason a message may have others.
"""

from __future__ import annotations

from decimal import Decimal
from hashlib import sha256
from typing import Any, Literal

import msgspec

from headrace import store
from headrace.model.capture import Differences
from headrace.sources.postgres.shaping import row_messages
from headrace.sources.postgres.shaping.shaped_changes import Comparison, ShapedChanges

FOLD_MESSAGES = 10_000
"""Number of messages of a stream that are folded at once."""

_READ = ',"changes":null,"action":"read"'
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
    chunk = await _fold(executor, comparison)
    found, repaired = Differences(unchecked=comparison.unchecked), ShapedChanges()
    for index, stored in sorted((await _stored(executor, comparison)).items()):
        kind = _difference(comparison.data[index], stored, comparison.as_text)
        if stored is None and comparison.missing != "difference":
            found.unchecked += comparison.missing == "unchecked"
        elif kind is not None:
            found.add(kind, [comparison.keys[index]])
            repaired.keys.append(comparison.keys[index])
            repaired.data.append(comparison.data[index])
    for key, data in (await _corrected(executor, comparison)).items():
        found.add("differs", [key])
        repaired.keys.append(key)
        repaired.data.append(data)
    extra = await _find_extra(executor, comparison)
    if comparison.deletes:
        found.add("extra", list(extra.values()))
        repaired.keys += extra.values()
        repaired.data += [comparison.absent[key][1] for key in extra]
    else:
        found.kept = len(extra)
    if not comparison.repair:
        repaired = ShapedChanges()
    repaired.chunks.append(msgspec.structs.replace(chunk, published=len(repaired.keys), differences=found))
    return repaired


async def _fold(executor: store.Executor, comparison: Comparison) -> store.ChunkDone:
    """Fold the stream in mode `changes`. Returns the chunk, which leads to the table once all is folded."""
    chunk, folding = comparison.chunk, comparison.folding
    if folding is None:
        return chunk
    done = False
    while not done:
        limit = folding.limit or FOLD_MESSAGES
        done = await store.fold_messages(executor, chunk.id, comparison.table, folding.columns, limit)
        if folding.limit is not None:
            return msgspec.structs.replace(chunk, place=[]) if done else chunk
    return chunk


async def _stored(executor: store.Executor, comparison: Comparison) -> dict[int, str | None]:
    """Return the messages that may differ from those that rows should have, by index. None if there is none."""
    if not comparison.keys:
        return {}
    digests = [_digest(data) if comparison.as_text else None for data in comparison.data]
    stream, folding = comparison.table.stream, comparison.folding
    if folding is None:
        return await store.compare_messages(executor, stream, comparison.keys, digests)
    return await store.compare_folded(executor, comparison.chunk.id, stream, folding.rows, digests)


async def _corrected(executor: store.Executor, comparison: Comparison) -> dict[str, str]:
    """Return the messages of changed rows that have taken a wrong value from the stream, with the right one, by key."""
    keys = list(comparison.changed_rows)
    if not keys:
        return {}
    stored = await store.compare_messages(executor, comparison.table.stream, keys, [None] * len(keys))
    found: dict[str, str] = {}
    for index, text in stored.items():
        expected, names = comparison.changed_rows[keys[index]]
        try:
            message, values = row_messages.decode(text or "{}"), row_messages.decode(expected).record or {}
        except ValueError:  # of another publisher, or none
            continue
        record = message.record or {}
        wrong = {
            name: values[name]
            for name in names & values.keys() & record.keys()
            if not _is_equal(values[name], record[name])
        }
        if wrong:
            message.record = record | wrong
            found[keys[index]] = row_messages.encode(message)
    return found


def _is_equal(one: msgspec.Raw, other: msgspec.Raw) -> bool:
    if bytes(one) == bytes(other):
        return True
    try:
        return _same(_decode(one), _decode(other))
    except (ValueError, RecursionError):  # numbers or nesting that Python can't read
        return False


async def _find_extra(executor: store.Executor, comparison: Comparison) -> dict[str, str]:
    """Return the keys in `absent` that are in the stream, and should not be, each with the key of its message."""
    absent = [key for key in comparison.absent if key not in comparison.keys]
    if not absent:
        return {}
    seqs = [comparison.absent[key][0] for key in absent]
    if comparison.folding is not None:
        return await store.live_folded(executor, comparison.chunk.id, comparison.table.stream, absent, seqs)
    live = await store.live_messages(executor, comparison.table, absent, seqs)
    return {key: key for key in absent if key in live}


def _digest(data: str) -> bytes:
    """Return the checksum of a message's record."""
    end = data.rfind(_METADATA)
    return sha256(data[_START:end].removesuffix(_READ).encode()).digest()


def _difference(expected: str, stored: str | None, plain: bool) -> Literal["differs", "missing"] | None:
    """Return how a message in the stream differs from the one that is expected.

    Args:
        plain: whether both have a record. Otherwise a transform has made something else of it.
    """
    if stored is None:
        return "missing"
    try:
        now, before = _decode(expected), _decode(stored)
    except (ValueError, RecursionError):  # numbers or nesting that Python can't read
        return None if expected == stored else "differs"
    if not plain:
        return None if _same(_without_metadata(now), _without_metadata(before)) else "differs"
    if not isinstance(before, dict) or not isinstance(record := before.get("record", ""), dict | None):
        return "differs"
    if record is None:
        return "missing"
    unchanged = before.get("metadata", {}).get("unchanged", ())
    same = all(_same(value, record.get(name)) for name, value in now["record"].items() if name not in unchanged)
    return None if same else "differs"


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal. Python also counts true as 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _without_metadata(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    return {name: value for name, value in message.items() if name != "metadata"}
