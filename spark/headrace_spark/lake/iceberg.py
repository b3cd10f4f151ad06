"""The Iceberg table of an archive.

Its catalog is the one that pyiceberg's own configuration calls `headrace`, or else tables in the database of the
stream, in the form of Iceberg's JDBC catalog. Its metadata lies in `_headrace/iceberg`. The files stay where they are.
They have no field ids, so the table maps columns by name, and the partition of a file, the day of `created_at`, follows
from its statistics.

The position of the table is in its properties, which a commit changes together with the snapshot. pyiceberg repeats a
commit that another one has overtaken, on top of that one, and would add a batch that both have twice. The table's
properties therefore switch that off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.model.errors import ConfigurationError
from headrace_spark.lake.files import CantKeepFiles, plain_url
from headrace_spark.lake.following import SCHEMES, Archive, CommittedMeanwhile, Position, check_known
from headrace_spark.lake.layout import DIRECTORY
from headrace_spark.lake.merges import day_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction

CATALOG = "headrace"
"""The name of the catalog, in pyiceberg's configuration and in the catalog's own tables, and of the namespace."""

MAX_SNAPSHOTS = 1_000
"""How many snapshots a table keeps, since each commit writes all of them."""

_METADATA = f"{DIRECTORY}/iceberg"
_ARCHIVE, _BATCH, _MERGE = "headrace.archive", "headrace.batch", "headrace.merge"
_RETRIES = "commit.retry.num-retries"
_STORE = {"s3.endpoint": "AWS_ENDPOINT_URL", "s3.region": "AWS_REGION"}
_PROPERTIES = {
    _RETRIES: "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}


class IcebergTable:
    """The Iceberg table of an archive, `headrace.STREAM`."""

    schemes = SCHEMES

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._root = plain_url(archive.root)
        self._identifier = (CATALOG, archive.stream)
        self._table: Table | None = None  # as of the last call of `position`

    @staticmethod
    def check() -> None:
        try:
            import psycopg  # noqa: F401
            import pyiceberg.catalog.sql
            import pyiceberg.io.pyarrow  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                f"The Iceberg table needs the package pyiceberg ({error}). Run pip install 'headrace[spark,iceberg]'."
            ) from error

    def position(self) -> Position | None:
        from pyiceberg.exceptions import NoSuchTableError

        with self._catalog() as catalog:
            try:
                self._table = catalog.load_table(self._identifier)
            except NoSuchTableError:
                self._table = None
                return None
            properties = self._table.properties
            if properties.get(_ARCHIVE) != self._archive.id:
                raise CantKeepFiles(
                    f"The Iceberg table {'.'.join(self._identifier)} is not of the archive in {self._archive.root!r}. Drop or rename it."
                )
            if properties.get(_RETRIES) != _PROPERTIES[_RETRIES]:  # another program has changed it
                with self._table.transaction() as transaction:
                    transaction.set_properties(_PROPERTIES)
            batch = properties.get(_BATCH)
        return None if batch is None else Position(int(batch), int(properties.get(_MERGE, -1)))

    def create(self, files: Sequence[str], position: Position) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        if self._table is None:
            with self._catalog() as catalog:
                catalog.create_namespace_if_not_exists(CATALOG)
                schema = _schema()
                try:
                    self._table = catalog.create_table(
                        self._identifier,
                        schema,
                        location=f"{self._root}/{_METADATA}",
                        partition_spec=_by_day(schema),
                        properties={**_PROPERTIES, _ARCHIVE: self._archive.id},
                    )
                except TableAlreadyExistsError as error:
                    raise CommittedMeanwhile(
                        f"Another process created the Iceberg table {'.'.join(self._identifier)}. Run it again."
                    ) from error
        self.append(files, position)

    def append(self, files: Sequence[str], position: Position) -> None:
        with self._transaction(position) as transaction:
            # A file that the table already has would be of a batch at or before its position.
            transaction.add_files(self._urls(files), check_duplicate_files=False)

    def replace(self, old: Sequence[str], new: Sequence[str], position: Position) -> None:
        from pyiceberg.io.pyarrow import parquet_files_to_data_files

        with self._transaction(position) as transaction:
            known = self._data_files(old)
            check_known(self._urls(old), known, self._archive.root)
            with transaction.update_snapshot().overwrite() as snapshot:
                for url in self._urls(old):
                    snapshot.delete_data_file(known[url])
                metadata, io = transaction.table_metadata, self._current.io
                for data_file in parquet_files_to_data_files(io, metadata, iter(self._urls(new))):
                    snapshot.append_data_file(data_file)

    @property
    def _current(self) -> Table:
        assert self._table is not None, "position was not called"
        return self._table

    def _urls(self, files: Sequence[str]) -> list[str]:
        return [f"{self._root}/{place}" for place in files]

    def _data_files(self, places: Sequence[str]) -> dict[str, DataFile]:
        """The table's entries of the files of these days, by their URLs."""
        days = sorted(datetime.combine(day_of(place), datetime.min.time(), UTC) for place in places)
        end = days[-1] + timedelta(days=1)
        within = f"created_at >= '{days[0].isoformat()}' and created_at < '{end.isoformat()}'"
        return {task.file.file_path: task.file for task in self._current.scan(row_filter=within).plan_files()}

    @contextmanager
    def _transaction(self, position: Position) -> Iterator[Transaction]:
        """A transaction that also stores the position."""
        with self._catalog():
            with self._current.transaction() as transaction:
                transaction.set_properties({_BATCH: str(position.batch), _MERGE: str(position.merge)})
                yield transaction
            snapshots = sorted(self._current.metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)
            if len(snapshots) > 2 * MAX_SNAPSHOTS:
                old = [snapshot.snapshot_id for snapshot in snapshots[:-MAX_SNAPSHOTS]]
                self._current.maintenance.expire_snapshots().by_ids(old).commit()

    @contextmanager
    def _catalog(self) -> Iterator[Catalog]:
        """The catalog, closed in the end. Its errors are raised as `CantKeepFiles`."""
        from pyiceberg.catalog import list_catalogs, load_catalog
        from pyiceberg.exceptions import CommitFailedException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            given = {} if CATALOG in list_catalogs() else catalog_properties(self._archive.database)
            catalog = load_catalog(CATALOG, **given) if self._table is None else self._table.catalog
            try:
                yield catalog
            finally:
                catalog.close()
        except Exception as error:
            of_iceberg = type(error).__module__.startswith("pyiceberg")
            if not of_iceberg and not isinstance(error, (OSError, SQLAlchemyError)):
                raise
            kind = CommittedMeanwhile if isinstance(error, CommitFailedException) else CantKeepFiles
            raise kind(
                f"The Iceberg table of the archive in {self._archive.root!r} can't be written: {_sentence(error)}."
            ) from error


def catalog_properties(database: str) -> dict[str, str]:
    """The properties of the catalog in a database, with the object store of the environment.

    The driver of the URL is the one that Headrace uses for captures. Arrow reads the endpoint of a store from the
    environment only for URLs that pyiceberg does not give it.
    """
    store = {name: os.environ.get(variable) for name, variable in _STORE.items()}
    url = "postgresql+psycopg" + database[database.index("://") :]
    return {"uri": url, **{name: value for name, value in store.items() if value}}


def _sentence(error: Exception) -> str:
    """The first line of an error. SQLAlchemy adds the statement."""
    return str(error).partition("\n")[0].rstrip(".")


def _schema() -> Schema:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

    types = (
        ("key", StringType()),
        ("seq", LongType()),
        ("headers", StringType()),
        ("created_at", TimestamptzType()),
        ("data", StringType()),
    )
    return Schema(*(NestedField(number, name, kind, required=False) for number, (name, kind) in enumerate(types, 1)))


def _by_day(schema: Schema) -> PartitionSpec:
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform

    source = schema.find_field("created_at").field_id
    return PartitionSpec(PartitionField(source, PARTITION_FIELD_ID_START, DayTransform(), "day"))
