"""The old and new rows of changes, with UNCHANGED in place of values that are not known."""

from __future__ import annotations

from headrace.sources.postgres.pgoutput.messages import UNCHANGED, Delete, Insert, Row, Update
from headrace.sources.postgres.rules.keys import NoKey
from headrace.sources.postgres.shaping.shapes import Shape


def filled(shape: Shape, change: Update) -> tuple[Row, Row | None]:
    """Return the new and the old row, with the relation's number of values. Unchanged values are filled in."""
    old = None if change.old is None else shape.padded(change.old)
    return shape.filled(shape.padded(change.new), old, change.key_only), old


def old_row(shape: Shape, old: Row, key_only: bool) -> Row:
    """Return the old row with UNCHANGED in place of null for values that are unknown."""
    old = shape.padded(old)
    return [value if index in shape.identity else UNCHANGED for index, value in enumerate(old)] if key_only else old


def key_changed(shape: Shape, new: Row, old: Row) -> bool:
    """Whether an update changed a row's key."""
    try:
        return shape.key(old) != shape.key(new)
    except NoKey:
        return False


def with_partition_identity(shape: Shape, change: Insert | Update | Delete) -> Insert | Update | Delete:
    """Correct an old row that was sent as the partition's replica identity has it.

    A change of a partition has its root's name and replica identity, but its old row has the
    columns of the partition's identity. If the root's is `full` and the partition's is not, all
    columns but the key are null. An old row like that is treated as a key.
    """
    if isinstance(change, Insert) or change.key_only or change.old is None or len(change.old) != shape.width:
        return change
    old, keys = change.old, frozenset(shape.key_indexes)
    if any(value is not None for index, value in enumerate(old) if index not in keys):
        return change
    if isinstance(change, Update) and all(old[index] == change.new[index] for index in keys):
        return change  # a key alone is only sent when it has changed
    known: Row = [value if index in keys else UNCHANGED for index, value in enumerate(old)]
    if isinstance(change, Update):
        return Update(change.relation, change.new, known, True, change.xid)
    return Delete(change.relation, known, True, change.xid)
