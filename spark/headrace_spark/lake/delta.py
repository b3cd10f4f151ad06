"""The Delta log of an archive: readers of Delta Lake see its batches as versions of a table.

The log lies in `_delta_log` beside the files, which stay where they are. The position of the table is stored as
versions of application transactions (see "Transaction Identifiers" in the Delta transaction log protocol): that of the
archive's id is the last batch, and that of its id with `/merges` is the last merge.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.model.errors import ConfigurationError
from headrace_spark.lake.files import CantKeepFiles, plain_url
from headrace_spark.lake.following import SCHEMES, Archive, CommittedMeanwhile, Position, check_known
from headrace_spark.lake.merges import day_of

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction
    from pyarrow import fs


class DeltaLog:
    """The Delta log of an archive."""

    schemes = SCHEMES

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._root = plain_url(archive.root)
        self._table: DeltaTable | None = None  # as of the last call of `position`, or our last commit

    @staticmethod
    def check() -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                f"The Delta log needs the package deltalake ({error}). Run pip install 'headrace[spark,delta]'."
            ) from error

    def position(self) -> Position | None:
        from deltalake import DeltaTable

        with self._errors():
            self._table = DeltaTable(self._root) if DeltaTable.is_deltatable(self._root) else None
            return None if self._table is None else self._position_of(self._table)

    def _position_of(self, table: DeltaTable) -> Position | None:
        batch, merge = map(table.transaction_version, self._transactions)
        return None if batch is None else Position(batch, -1 if merge is None else merge)

    @property
    def _transactions(self) -> tuple[str, str]:
        return self._archive.id, f"{self._archive.id}/merges"

    def create(self, files: Sequence[str], position: Position) -> None:
        from deltalake import DeltaTable

        with self._errors():
            if self._table is None:
                self._table = DeltaTable.create(self._root, _schema(), mode="ignore", partition_by=["day"])
        self.append(files, position)

    def append(self, files: Sequence[str], position: Position) -> None:
        self._commit((), files, position, data_change=True)

    def replace(self, old: Sequence[str], new: Sequence[str], position: Position) -> None:
        import pyarrow as pa

        assert self._table is not None, "position was not called"
        check_known(old, pa.table(self._table.get_add_actions())["path"].to_pylist(), self._archive.root)
        self._commit(old, new, position, data_change=False)

    def _commit(self, old: Sequence[str], new: Sequence[str], position: Position, *, data_change: bool) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import RemoveAction

        assert self._table is not None, "position was not called"
        with self._errors():
            files, now = _file_system(self._table), int(time.time() * 1000)
            actions: list[AddAction | RemoveAction] = [
                RemoveAction(place, data_change, now, partition_values=_partition(place)) for place in old
            ]
            actions += [_add(files, place, data_change) for place in new]
            numbers = zip(self._transactions, (position.batch, position.merge), strict=True)
            done = [Transaction(id, number) for id, number in numbers if number >= 0]  # noqa: A001
            properties = CommitProperties(app_transactions=done)
            self._table.create_write_transaction(actions, "append", _schema(), ["day"], commit_properties=properties)
            # Otherwise the next commit would be in conflict with this one.
            self._table.update_incremental()
            if self._position_of(self._table) != position:
                raise CommittedMeanwhile(
                    f"Another process committed to the Delta log of the archive in {self._archive.root!r}. Run it again."
                )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            yield
        except (DeltaError, OSError) as error:
            kind = CommittedMeanwhile if isinstance(error, CommitFailedError) else CantKeepFiles
            raise kind(f"The Delta log of the archive in {self._archive.root!r} can't be written: {error}.") from error


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


def _add(files: fs.PyFileSystem, place: str, data_change: bool) -> AddAction:
    from deltalake.transaction import AddAction

    info, stats = files.get_file_info(place), _statistics(files, place)
    return AddAction(
        path=place,
        size=info.size,
        partition_values=_partition(place),
        modification_time=info.mtime_ns // 1_000_000,
        data_change=data_change,
        stats=json.dumps(stats),
    )


def _partition(place: str) -> dict[str, str | None]:
    return {"day": day_of(place).isoformat()}


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
