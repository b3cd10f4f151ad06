"""The Iceberg and the DuckLake table of an archive: each batch is in the table once, and merges are followed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import And, EqualTo, GreaterThan
from pyiceberg.table import Table

from headrace import store
from headrace.model.errors import ConfigurationError
from headrace_spark.lake import ducklake, iceberg
from headrace_spark.lake.files import CantKeepFiles, LocalFiles
from headrace_spark.lake.following import FORMATS, Archive, Position, check_formats, existing_formats, update_tables
from headrace_spark.lake.layout import Layout
from headrace_spark.lake.merges import Merges
from headrace_spark.pipelines.archive import archive
from headrace_spark.pipelines.merge import merge
from tests.spark.filling import archived, fill, publish
from tests.spark.test_archive import Killed, kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.asyncio

THIRD_DAY = datetime(2030, 1, 3, 12, tzinfo=UTC)
CLASSES: dict[str, Any] = {"iceberg": iceberg.IcebergTable, "ducklake": ducklake.DuckLakeTable}


class Lake:
    """The archive of the stream `orders`, with a table."""

    def __init__(self, spark: SparkSession, dsn: str, path: Path, name: str) -> None:
        self.spark, self.dsn, self.path, self.format = spark, dsn, path, name
        self.layout = Layout(LocalFiles(str(path)))

    async def archive(self, **options: Any) -> None:
        options = {"tables": [self.format], **options}
        await anyio.to_thread.run_sync(
            lambda: archive("orders", self.path, spark=self.spark, database=self.dsn, partitions=1, **options)
        )

    async def merge(self, now: datetime) -> None:
        await anyio.to_thread.run_sync(lambda: merge(self.path, spark=self.spark, database=self.dsn, now=now))

    def update(self) -> None:
        identity = self.layout.identity()
        assert identity is not None
        known = Archive(id=identity.id, stream="orders", root=self.layout.files.root, database=self.dsn)
        update_tables(known, self.layout, [self.format])

    def iceberg(self) -> Table:
        catalog = SqlCatalog("headrace", **iceberg.catalog_properties(self.dsn))
        try:
            return catalog.load_table("headrace.orders")
        finally:
            catalog.close()

    def ducklake(self, statement: str) -> list[tuple[Any, ...]]:
        connection = ducklake._connect()
        source = f"ducklake:postgres:{self.dsn}"
        connection.execute(f"attach '{source}' as lake (metadata_schema 'headrace_lake_orders')")
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def seqs(self) -> list[int]:
        """The seqs in the table, each as often as it is there."""
        if self.format == "iceberg":
            return sorted(self.iceberg().scan().to_arrow()["seq"].to_pylist())
        return [seq for (seq,) in self.ducklake("select seq from lake.orders order by seq")]

    def places(self) -> list[str]:
        """The files of the table, without the root."""
        if self.format == "iceberg":
            paths = self.iceberg().inspect.files()["file_path"].to_pylist()
        else:
            paths = [path for (path,) in self.ducklake("select data_file from ducklake_list_files('lake', 'orders')")]
        return sorted(path.removeprefix("file://").removeprefix(f"{self.path}/") for path in paths)


@pytest.fixture
def make(spark: SparkSession, dsn: str, tmp_path: Path) -> Callable[[str], Lake]:
    return lambda name: Lake(spark, dsn, tmp_path / "archive", name)


@pytest.fixture(params=list(CLASSES))
def lake(make: Callable[[str], Lake], request: pytest.FixtureRequest) -> Lake:
    return make(request.param)


async def test_each_batch_is_a_snapshot_and_readers_of_iceberg_leave_files_out_by_day_and_seq(
    make: Callable[[str], Lake], database: store.Database
) -> None:
    lake = make("iceberg")
    await fill(database, "orders", 40, days=2)
    await lake.archive(max_rows=10)
    await publish(database, "orders", 40, 45)
    await lake.archive()
    table = lake.iceberg()
    counts = [len(table.scan(snapshot_id=one.snapshot_id).to_arrow()) for one in table.snapshots()]
    assert counts == [10, 20, 30, 40, 45]
    assert lake.seqs() == archived(lake.path)["seq"].to_pylist() == list(range(1, 46))
    late = And(GreaterThan("seq", 15), EqualTo("key", "orders.1"))
    assert len(list(table.scan(row_filter=late).plan_files())) == 4
    second_day = "created_at >= '2030-01-02T00:00:00+00:00' and created_at < '2030-01-03T00:00:00+00:00'"
    assert len(list(table.scan(row_filter=second_day).plan_files())) == 2
    assert sorted(table.scan(row_filter=second_day).to_arrow()["seq"].to_pylist()) == list(range(21, 41))
    assert str(table.scan().to_arrow()["created_at"].type) == "timestamp[us, tz=UTC]"
    assert not list(lake.path.glob("metadata")), "a listing shows nothing of the table"


async def test_each_batch_is_a_snapshot_of_the_duck_lake_with_its_day(
    make: Callable[[str], Lake], database: store.Database
) -> None:
    lake = make("ducklake")
    await fill(database, "orders", 40, days=2)
    await lake.archive(max_rows=10)
    newest = max(number for (number,) in lake.ducklake("select snapshot_id from lake.snapshots()"))
    counts = [lake.ducklake(f"select count(*) from lake.orders at (version => {newest - n})")[0][0] for n in range(4)]
    assert counts == [40, 30, 20, 10]
    days = lake.ducklake("select day::text, count(*), min(seq) from lake.orders group by all order by 1")
    assert days == [("2030-01-01", 20, 1), ("2030-01-02", 20, 21)]
    types = {name: kind for name, kind, *_ in lake.ducklake("describe lake.orders")}
    assert (types["created_at"], types["data"]) == ("TIMESTAMP WITH TIME ZONE", "VARCHAR")


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("after the manifest", marks=pytest.mark.long),
        "create",
        pytest.param("append", marks=pytest.mark.long),
    ],
)
async def test_a_batch_is_in_the_table_once_whenever_a_run_is_killed(
    at: str, lake: Lake, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database, "orders", 20, days=2)

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        if at == "after the manifest":
            kill(patched, at)
        else:
            patched.setattr(CLASSES[lake.format], at, killed)
        with pytest.raises(Exception, match="Killed"):
            await lake.archive(max_rows=10)
    await publish(database, "orders", 20, 25)
    await lake.archive()
    assert lake.seqs() == list(range(1, 26))


async def test_of_two_processes_that_commit_a_batch_one_finds_that_the_table_has_it(
    lake: Lake, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database, "orders", 10)
    await lake.archive(tables=())
    owner, name = CLASSES[lake.format], "_urls" if lake.format == "iceberg" else "_paths"
    paths, calls = getattr(owner, name), []

    def slow(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            lake.update()  # another process is faster
        return paths(*arguments)

    monkeypatch.setattr(owner, name, slow)
    lake.update()  # the first batch, which creates the table
    assert (len(calls), lake.seqs()) == (2, list(range(1, 11)))
    await publish(database, "orders", 10, 20)
    await lake.archive(tables=())
    calls.clear()
    lake.update()
    assert (len(calls), lake.seqs()) == (2, list(range(1, 21)))


async def test_pyiceberg_does_not_repeat_a_commit_on_top_of_another_one(
    make: Callable[[str], Lake], database: store.Database
) -> None:
    lake = make("iceberg")
    await fill(database, "orders", 10)
    await lake.archive()
    table = lake.iceberg()
    with table.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "4"})
    table.catalog.close()
    lake.update()
    assert lake.iceberg().properties["commit.retry.num-retries"] == "0"


@pytest.mark.long
async def test_merges_are_followed(lake: Lake, database: store.Database) -> None:
    await fill(database, "orders", 40, days=2)
    await lake.archive(max_rows=5)
    assert len(lake.places()) == 8
    for days in range(3):
        await lake.merge(THIRD_DAY + timedelta(days=2 * days))
        assert lake.seqs() == list(range(1, 41))
        assert all((lake.path / place).is_file() for place in lake.places())
    directories = [place.partition("/seq-")[0] for place in lake.places()]
    assert directories == ["day=2030-01-01", "day=2030-01-02", "day=2030-01-02"]
    await publish(database, "orders", 40, 45)
    await lake.archive()
    assert lake.seqs() == list(range(1, 46))


@pytest.mark.long
async def test_a_table_of_another_archive_is_refused(lake: Lake, database: store.Database, tmp_path: Path) -> None:
    await fill(database, "orders", 3)
    await lake.archive()
    lake.path = tmp_path / "another"
    with pytest.raises(CantKeepFiles, match=r"(table headrace\.orders|'headrace_lake_orders') is not of the archive"):
        await lake.archive()
    assert lake.seqs() == [1, 2, 3]
    assert existing_formats(Layout(LocalFiles(str(lake.path)))) == [], "a merge without the table works"


@pytest.mark.long
async def test_each_stream_has_a_duck_lake_of_its_own(dsn: str, tmp_path: Path) -> None:
    def table(name: str) -> ducklake.DuckLakeTable:
        return ducklake.DuckLakeTable(Archive(id=name, stream=name, root=f"file://{tmp_path}", database=dsn))

    names = ("orders", "Orders", "x" * 63, "x" * 64, "headrace_position")
    for name in names:
        found = table(name)
        assert found.position() is None
        found.create([], Position(0))
    assert [table(name).position() for name in names] == [Position(0)] * len(names)
    assert ducklake.catalog_schema("orders") == "headrace_lake_orders"


@pytest.mark.long
async def test_a_merge_makes_no_table_in_another_database(
    make: Callable[[str], Lake], database: store.Database
) -> None:
    """The archive's own table would be left with files that are deleted after the grace time."""
    lake = make("ducklake")
    await fill(database, "orders", 20, days=2)
    await lake.archive(max_rows=5)
    await database.fetch("alter schema headrace_lake_orders rename to elsewhere")  # as in another database
    with pytest.raises(CantKeepFiles, match="has no ducklake table in this database"):
        await lake.merge(THIRD_DAY)
    assert Merges(lake.layout).numbers() == []
    await database.fetch("drop schema headrace_lake_orders cascade")
    await database.fetch("alter schema elsewhere rename to headrace_lake_orders")
    await lake.merge(THIRD_DAY)
    assert lake.seqs() == list(range(1, 21))


@pytest.mark.long
async def test_old_snapshots_of_iceberg_expire(
    make: Callable[[str], Lake], database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "MAX_SNAPSHOTS", 2)
    lake = make("iceberg")
    await fill(database, "orders", 12)
    await lake.archive(max_rows=2)
    assert 2 <= len(lake.iceberg().snapshots()) <= 4
    assert lake.seqs() == list(range(1, 13))


@pytest.mark.parametrize(("name", "module"), [("iceberg", "pyiceberg.catalog.sql"), ("ducklake", "duckdb")])
async def test_what_can_have_no_table_is_refused_before_anything_is_written(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="can't be written to 'hdfs://"):
        check_formats([name], "hdfs://host/archive")
    with pytest.raises(ConfigurationError, match=rf"'hudi' is unknown\. It must be one of {', '.join(FORMATS)}"):
        check_formats(["hudi"], "file:///archive")
    with pytest.raises(ConfigurationError, match="has the character '#'"):
        check_formats([name], "file:///archives/#1")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'headrace\[spark,{name}\]'"):
        check_formats([name], "file:///archive")
