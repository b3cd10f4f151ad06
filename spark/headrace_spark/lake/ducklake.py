"""The DuckLake table of an archive.

Its catalog is a schema of the stream's database, see `catalog_schema`. The files stay where they are. The position of
the table is a row of the table `_headrace_position` of the lake, since no stream has this name. A commit changes it
together with the files. Of two transactions that change it DuckLake lets one fail. The row is small, so DuckLake keeps
it in the catalog. Deletions from the table are not kept there, because a file of which all rows are deleted would then
stay a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.model.errors import ConfigurationError
from headrace.model.text.sql import quoted
from headrace_spark.lake.files import CantKeepFiles
from headrace_spark.lake.following import Archive, CommittedMeanwhile, Position, check_known
from headrace_spark.lake.layout import DIRECTORY

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SCHEMA = "headrace_lake_"
"""The prefix of the names of catalogs."""

_MAX_SCHEMA = 63  # bytes
_EXTENSIONS = ("ducklake", "postgres_scanner")
_POSITION = "_headrace_position"
_COLUMNS = "key varchar, seq bigint, headers varchar, created_at timestamptz, data varchar, day date"


class DuckLakeTable:
    """The DuckLake table of an archive, named like its stream."""

    schemes = ("file",)

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._root = archive.root.removeprefix("file://")
        self._table = f"lake.{quoted(archive.stream)}"
        self._known: Position | None = None  # as of the last call of `position`

    @staticmethod
    def check() -> None:
        _connect().close()

    def position(self) -> Position | None:
        with self._lake() as lake:
            names = {
                name
                for (name,) in lake.sql(
                    "select table_name from duckdb_tables() where database_name = 'lake'"
                ).fetchall()
            }
            rows = (
                lake.sql(f"select archive, batch, merge from lake.{_POSITION}").fetchall() if _POSITION in names else []
            )
        if rows and rows[0][0] != self._archive.id:
            raise CantKeepFiles(
                f"The DuckLake catalog {self._schema!r} is not of the archive in {self._archive.root!r}. Drop or rename this schema."
            )
        self._known = Position(*rows[0][1:]) if rows else None
        return self._known

    def create(self, files: Sequence[str], position: Position) -> None:
        with self._lake() as lake, _transaction(lake):
            lake.execute(f"create table {self._table} ({_COLUMNS})")
            lake.execute(f"alter table {self._table} set partitioned by (day)")
            lake.execute(f"create table lake.{_POSITION} (archive varchar, batch bigint, merge bigint)")
            lake.execute(
                f"insert into lake.{_POSITION} values (?, ?, ?)", [self._archive.id, position.batch, position.merge]
            )
            self._add(lake, files)
        self._known = position

    def append(self, files: Sequence[str], position: Position) -> None:
        with self._lake() as lake, _transaction(lake):
            self._move_to(lake, position)
            self._add(lake, files)
        self._known = position

    def replace(self, old: Sequence[str], new: Sequence[str], position: Position) -> None:
        paths = self._paths(old)
        with self._lake() as lake:
            lake.execute("call lake.set_option('data_inlining_row_limit', 0, table_name => ?)", [self._archive.stream])
            with _transaction(lake):
                self._move_to(lake, position)
                files = lake.execute("select data_file from ducklake_list_files('lake', ?)", [self._archive.stream])
                check_known(paths, (path for (path,) in files.fetchall()), self._archive.root)
                lake.execute(f"delete from {self._table} where filename in (select unnest(?))", [paths])
                self._add(lake, new)
        self._known = position

    def _add(self, lake: DuckDBPyConnection, files: Sequence[str]) -> None:
        for path in self._paths(files):
            lake.execute(
                "call ducklake_add_data_files('lake', ?, ?, hive_partitioning => true)", [self._archive.stream, path]
            )

    def _move_to(self, lake: DuckDBPyConnection, position: Position) -> None:
        known = self._known
        assert known is not None, "position was not called"
        changed = lake.execute(
            f"update lake.{_POSITION} set batch = ?, merge = ? where batch = ? and merge = ?",
            [position.batch, position.merge, known.batch, known.merge],
        ).fetchall()
        if changed != [(1,)]:
            raise CommittedMeanwhile(
                f"Another process committed to the DuckLake catalog {self._schema!r}. Run it again."
            )

    def _paths(self, files: Sequence[str]) -> list[str]:
        return [f"{self._root}/{place}" for place in files]

    @property
    def _schema(self) -> str:
        return catalog_schema(self._archive.stream)

    @contextmanager
    def _lake(self) -> Iterator[DuckDBPyConnection]:
        """A connection to the catalog, which is created if it does not exist. DuckDB's errors are raised as
        `CantKeepFiles`."""
        import duckdb

        lake = _connect()
        try:
            lake.execute(
                f"attach {_text(f'ducklake:postgres:{self._archive.database}')} as lake"
                f" (data_path {_text(f'{self._root}/{DIRECTORY}/ducklake/')}, override_data_path true,"
                f" metadata_schema {_text(self._schema)})"
            )
            yield lake
        except duckdb.Error as error:
            kind = CommittedMeanwhile if "conflict" in str(error).lower() else CantKeepFiles
            reason = str(error).replace(self._archive.database, "…").partition("\n")[0].rstrip(".")
            raise kind(
                f"The DuckLake catalog {self._schema!r} can't be written: {reason}."
            ) from None  # it may show a password
        finally:
            lake.close()


def catalog_schema(stream: str) -> str:
    """The schema of a stream's catalog: `headrace_lake_STREAM`.

    Postgres cuts names after 63 bytes, and DuckDB does not distinguish `Orders` and `orders`. If the stream's name has
    more than 49 characters or upper-case letters, the schema has its beginning in lower case, and a hash.
    """
    if stream == stream.lower() and len(SCHEMA + stream) <= _MAX_SCHEMA:
        return SCHEMA + stream
    end = "_" + sha256(stream.encode()).hexdigest()[:8]
    return f"{SCHEMA}{stream.lower()}"[: _MAX_SCHEMA - len(end)] + end


def _connect() -> DuckDBPyConnection:
    """DuckDB with its extensions, of the packages that carry them or else as they were installed by DuckDB."""
    try:
        import duckdb
    except ImportError as error:
        raise _lacking(error) from error
    connection = duckdb.connect()
    try:
        for name in _EXTENSIONS:
            connection.execute(f"load {_text(_extension(name, duckdb.__version__))}")
    except duckdb.Error as error:
        connection.close()
        raise _lacking(error) from error
    return connection


def _extension(name: str, version: str) -> str:
    """The file of an extension in its package, or the extension's name without a package."""
    try:
        package = import_module(f"duckdb_extension_{name}")
    except ImportError:
        return name
    return str(Path(str(package.__file__)).parent / "extensions" / f"v{version}" / f"{name}.duckdb_extension")


def _lacking(error: Exception) -> ConfigurationError:
    reason = str(error).partition("\n")[0]
    return ConfigurationError(
        f"The DuckLake table needs DuckDB and its extensions ({reason}). Run pip install 'headrace[spark,ducklake]'."
    )


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@contextmanager
def _transaction(lake: DuckDBPyConnection) -> Iterator[None]:
    lake.execute("begin")
    yield  # a connection that is closed rolls back
    lake.execute("commit")
