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
    """Replace what is unknown of an old row of a partition by UNCHANGED.

    A change of a partition has its root's name and replica identity, but its old row has the columns of the partition's
    own identity, and null in all others. The columns of an identity and of a key are never null. If the root's identity
    is not `full`, the values that are null are therefore unknown. Otherwise they are if a value of the key is null, or
    if the others are just those of a partition's identity.
    """
    if isinstance(change, Insert) or change.old is None or len(change.old) != shape.width:
        return change
    old = change.old
    known = frozenset(index for index, value in enumerate(old) if value is not None)
    if known == shape.identity:
        return change
    if not change.key_only and known.issuperset(shape.key_indexes):
        if known not in shape.leaf_identities:
            return change
        if isinstance(change, Update) and all(old[index] == change.new[index] for index in known):
            return change  # an identity alone is only sent when it has changed
    row: Row = [value if index in known else UNCHANGED for index, value in enumerate(old)]
    if isinstance(change, Update):
        return Update(change.relation, change.new, row, False, change.xid)
    return Delete(change.relation, row, False, change.xid)
