"""The Delta log of an archive: readers of Delta Lake see its batches as versions of a table.

The log lies in `_delta_log` beside the files, which stay where they are. The archive's manifest commits a batch, and the log
follows: each commit names the last batch that it has, as the version of an application transaction whose id is the archive's
(see "Transaction Identifiers" in the Delta transaction log protocol). A batch is thus in the table once, whenever a
run is killed, and of two processes that commit the same batch one fails.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.model.errors import ConfigurationError
from headrace_spark.pipelines.files import CantKeepFiles, plain_url
from headrace_spark.pipelines.layout import Layout, Manifest

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction
    from pyarrow import fs

SCHEMES = ("file", "s3", "s3a", "abfs", "abfss", "gs")
"""The file systems to which the log can be written."""


def check_delta(root: str) -> None:
    """Check that a Delta log can be kept at a root.

    Raises:
        ConfigurationError: the library is missing, or can't write to this file system.
    """
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"The Delta log needs the package deltalake ({error}). Run pip install 'headrace[spark,delta]'."
        ) from error
    scheme = root.partition(":")[0]
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"A Delta log can't be written to {root!r}. It can be kept on {', '.join(SCHEMES)}. Archive without it."
        )


def commit_to_delta(layout: Layout, archive_id: str) -> int | None:
    """Commit the batches that the Delta log does not have yet, all in one version.

    Their files must be in their places.

    Args:
        layout: the archive.
        archive_id: the archive's id.

    Returns:
        The version of the table, or None if there is no batch yet.

    Raises:
        CantKeepFiles: another process has committed to the log, or it can't be written.
    """
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.exceptions import DeltaError

    root = plain_url(layout.files.root)
    try:
        known = DeltaTable.is_deltatable(root)
        table = DeltaTable(root) if known else None
        batches = list(layout.manifests(-1 if table is None else _last_batch(table, archive_id)))
        if not batches:
            return None if table is None else table.version()
        schema = _schema()
        if table is None:
            table = DeltaTable.create(root, schema, mode="ignore", partition_by=["day"])
        files = _file_system(table)
        actions: list[AddAction | RemoveAction] = [action for batch in batches for action in _actions(files, batch)]
        done = CommitProperties(app_transactions=[Transaction(archive_id, batches[-1].batch)])
        table.create_write_transaction(actions, "append", schema, ["day"], commit_properties=done)
        return table.version()
    except (DeltaError, OSError) as error:
        raise CantKeepFiles(
            f"The Delta log of the archive in {layout.files.root!r} can't be written: {error}."
        ) from error


def _last_batch(table: DeltaTable, archive_id: str) -> int:
    found = table.transaction_version(archive_id)
    return -1 if found is None else found


def _file_system(table: DeltaTable) -> fs.PyFileSystem:
    """The files of the table, read with the same settings and credentials as its log."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow import fs

    return fs.PyFileSystem(DeltaStorageHandler.from_table(table._table))


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("key", pa.string()),
            ("seq", pa.int64()),
            ("headers", pa.string()),
            ("created_at", pa.timestamp("us", tz="UTC")),
            ("data", pa.string()),
            ("day", pa.date32()),
        ]
    )


def _actions(files: fs.PyFileSystem, batch: Manifest) -> list[AddAction]:
    from deltalake.transaction import AddAction

    found = []
    for place in batch.files.values():
        info, stats = files.get_file_info(place), _statistics(files, place)
        found.append(
            AddAction(
                path=place,
                size=info.size,
                partition_values={"day": place.partition("/")[0].removeprefix("day=")},
                modification_time=info.mtime_ns // 1_000_000,
                data_change=True,
                stats=json.dumps(stats),
            )
        )
    return found


def _statistics(files: fs.PyFileSystem, place: str) -> dict[str, Any]:
    """The statistics of a file from its footer, by which readers leave files out."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    with files.open_input_file(place) as source:
        footer = pq.ParquetFile(source).metadata
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    at = footer.schema.to_arrow_schema().get_field_index("seq")
    seqs = [group.column(at).statistics for group in groups]
    stats: dict[str, Any] = {"numRecords": footer.num_rows}
    if seqs and all(seq is not None and seq.has_min_max for seq in seqs):
        stats |= {
            "minValues": {"seq": min(seq.min for seq in seqs)},
            "maxValues": {"seq": max(seq.max for seq in seqs)},
            "nullCount": {"seq": 0},
        }
    return stats
