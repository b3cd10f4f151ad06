"""Cuts Arrow batches into pieces: by size, and by the stream that each row names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.model.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

STREAM = "stream"
"""The column that names the stream of a row."""

MAX_STREAMS = 100
"""Maximum number of streams whose messages one write publishes. Each has a staging table, and locks in the commit."""


def chunks(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of about `size` bytes: large batches are cut, and small ones joined."""
    held: list[pa.RecordBatch] = []
    total = 0
    for batch in batches:
        whole = batch.nbytes  # also of a slice
        step = max(1, batch.num_rows * size // max(whole, size))
        for start in range(0, batch.num_rows, step):
            piece = batch.slice(start, step)
            piece_bytes = whole * piece.num_rows // batch.num_rows
            if held and (total + piece_bytes > size or piece.schema != held[0].schema):
                yield _joined(held)
                held, total = [], 0
            held.append(piece)
            total += piece_bytes
    if held:
        yield _joined(held)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    if len(batches) == 1:
        return batches[0]
    return pa.RecordBatch.from_struct_array(pa.concat_arrays([batch.to_struct_array() for batch in batches]))


def by_stream(rows: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """The rows of each stream in their order, without the column `stream`. None is for rows that name no stream."""
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

    streams = rows.column(STREAM).cast(pa.string())
    others = rows.drop_columns([STREAM])
    for stream in streams.unique().to_pylist():
        of_stream = pc.is_null(streams) if stream is None else pc.equal(streams, stream)
        yield stream, others.filter(of_stream)


def check_number(streams: Collection[str]) -> None:
    """Raise `InvalidInput` if a write has more than `MAX_STREAMS` streams."""
    if len(streams) > MAX_STREAMS:
        raise InvalidInput(
            f"The rows of the write name more than {MAX_STREAMS} streams, such as {', '.join(sorted(streams)[:3])}. Filter the rows, and write those"
            f" of {MAX_STREAMS} streams at a time."
        )
