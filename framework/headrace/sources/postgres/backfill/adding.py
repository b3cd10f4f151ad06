"""Adds a chunk to the batch at its place in the WAL."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.sources.postgres.backfill.chunks import Chunk
from headrace.sources.postgres.backfill.expecting import Expectations
from headrace.sources.postgres.shaping.shaped_changes import ShapedChanges, Transaction
from headrace.sources.postgres.shaping.shaper import Shaper
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.postgres.values import TypeInfo


class ChunkAdder:
    """Adds the chunks of one source.

    Args:
        spec: its settings.
        shaper: its shaper.
    """

    def __init__(self, spec: PostgresSpec, shaper: Shaper) -> None:
        self._shaper = shaper
        self._expectations = Expectations(spec, shaper)

    def add(self, chunk: Chunk, types: Mapping[int, TypeInfo], transaction: Transaction, into: ShapedChanges) -> int:
        """Add the rows of a chunk, or their comparison with the stream.

        Args:
            types: the types of its columns that are not built in.
            transaction: the one that marks its place in the WAL.

        Returns:
            How many messages were added.
        """
        if chunk.verified is not None:
            into.truncated.append(
                self._expectations.comparison(chunk, chunk.verified, types, transaction, len(into.keys))
            )
            return 0
        count = self._shaper.add_rows(chunk.table, types, chunk.rows, chunk.columns, transaction, into)
        into.chunks.append(msgspec.structs.replace(chunk.done, published=count))
        return count
