"""The Delta log of an archive: each batch is in the table once, and is a version of it."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from deltalake import DeltaTable

from headrace import store
from headrace.model.errors import ConfigurationError
from headrace_spark.lake import delta
from headrace_spark.lake.files import LocalFiles
from headrace_spark.lake.following import Archive, CommittedMeanwhile, Position, check_formats, update_tables
from headrace_spark.lake.layout import Layout
from headrace_spark.pipelines.archive import archive
from tests.spark.filling import archived, fill, publish
from tests.spark.test_archive import Killed, kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.asyncio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def run(spark: SparkSession, dsn: str, path: Path) -> Any:
    """Archive the stream `orders` with a Delta log, outside of the event loop."""

    async def run(**options: Any) -> None:
        options = {"delta": True, **options}
        await anyio.to_thread.run_sync(lambda: archive("orders", path, spark=spark, database=dsn, **options))

    return run


def seqs(path: Path, version: int | None = None) -> list[int]:
    """The seqs of a version of the table, each as often as it is there."""
    found = DeltaTable(path, version=version).to_pyarrow_table()["seq"].to_pylist()
    return sorted(found)


async def test_each_batch_is_a_version_and_the_plain_files_are_as_without_a_log(
    run: Any, database: store.Database, path: Path
) -> None:
    await fill(database, "orders", 60, days=2)
    await run(max_rows=20)
    await publish(database, "orders", 60, 70)
    await run()
    newest = DeltaTable(path).version()
    assert [len(seqs(path, version)) for version in range(newest + 1)] == [0, 20, 40, 60, 70]
    assert seqs(path) == archived(path)["seq"].to_pylist() == list(range(1, 71))
    table = DeltaTable(path).to_pyarrow_table()
    assert set(table.column_names) == {"key", "seq", "headers", "created_at", "data", "day"}
    assert str(table["created_at"].type) == "timestamp[us, tz=UTC]"


async def test_readers_leave_files_out_by_day_and_seq(run: Any, database: store.Database, path: Path) -> None:
    await fill(database, "orders", 40, days=2)
    await run(max_rows=10)
    (first,) = [Path(one) for one in DeltaTable(path).file_uris() if "seq-0000000000000000001-" in one]
    first.write_bytes(b"not read")
    table = DeltaTable(path).to_pyarrow_dataset()
    late, second_day = pyarrow.dataset.field("seq") > 30, pyarrow.dataset.field("day") == date(2030, 1, 2)
    assert sorted(table.to_table(filter=late)["seq"].to_pylist()) == list(range(31, 41))
    assert sorted(table.to_table(filter=second_day)["seq"].to_pylist()) == list(range(21, 41))


@pytest.mark.parametrize(
    "at",
    [pytest.param("after the manifest", marks=pytest.mark.long), "between the moves", "before the log"],
)
async def test_a_batch_is_in_the_log_once_whenever_a_run_is_killed(
    at: str, run: Any, database: store.Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database, "orders", 50, days=2)
    with monkeypatch.context() as patched:
        if at == "before the log":

            def killed(*_: object, **__: object) -> None:
                raise Killed

            patched.setattr(delta.DeltaLog, "_commit", killed)
        else:
            kill(patched, at)
        with pytest.raises(Exception, match="Killed"):
            await run()
    await publish(database, "orders", 50, 60)
    await run()
    assert seqs(path) == list(range(1, 61))


@pytest.mark.long
async def test_an_archive_gets_its_log_later(run: Any, database: store.Database, path: Path) -> None:
    await fill(database, "orders", 40)
    await run(delta=False, max_rows=10)
    assert not DeltaTable.is_deltatable(str(path))
    await run()
    assert (seqs(path), DeltaTable(path).version()) == (list(range(1, 41)), 1)
    await publish(database, "orders", 40, 50)
    await run(delta=False)
    assert seqs(path) == list(range(1, 41))
    await run()
    assert seqs(path) == list(range(1, 51))


async def test_of_two_processes_that_commit_a_batch_one_finds_that_the_table_has_it(
    run: Any, database: store.Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database, "orders", 10)
    await run(delta=False)
    layout = Layout(LocalFiles(str(path)))
    archive = Archive(id=_identity(layout).id, stream="orders", root=layout.files.root, database="")
    add, calls = delta._add, []

    def slow(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            update_tables(archive, layout, ["delta"])  # another process is faster
        return add(*arguments)

    monkeypatch.setattr(delta, "_add", slow)
    update_tables(archive, layout, ["delta"])
    assert (seqs(path), len(calls)) == (list(range(1, 11)), 2)


def _identity(layout: Layout) -> Any:
    found = layout.identity()
    assert found is not None
    return found


class Log:
    """A Delta log of files with one row each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = delta.DeltaLog(Archive(id="a", stream="orders", root=f"file://{path}", database=""))

    def file(self, seq: int) -> str:
        """Write a file with this seq. Returns its name."""
        place = f"day=2030-01-01/seq-{seq}.parquet"
        (self.path / place).parent.mkdir(parents=True, exist_ok=True)
        row = {"key": "a", "seq": seq, "headers": None, "created_at": datetime(2030, 1, 1, tzinfo=UTC), "data": "1"}
        schema = pa.schema([field for field in delta._schema() if field.name != "day"])
        pyarrow.parquet.write_table(pa.Table.from_pylist([row], schema), self.path / place)
        return place


async def test_a_batch_and_a_merge_of_one_run_are_two_commits_without_a_conflict(tmp_path: Path) -> None:
    log = Log(tmp_path)
    assert log.table.position() is None
    log.table.create([log.file(1)], Position(0))
    log.table.append([log.file(2)], Position(1))
    log.table.replace([log.file(1), log.file(2)], [log.file(3)], Position(1, 0))
    assert (seqs(tmp_path), log.table.position()) == ([3], Position(1, 0))


@pytest.mark.parametrize("when", ["between", "during"])
async def test_a_commit_of_another_process_between_those_of_a_batch_and_a_merge_is_noticed(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = Log(tmp_path), Log(tmp_path)
    assert log.table.position() is None
    log.table.create([log.file(1)], Position(0))
    commit = DeltaTable.create_write_transaction

    def overtaken(*arguments: Any, **options: Any) -> None:
        commit(*arguments, **options)
        monkeypatch.undo()
        other.table.position()
        other.table.append([other.file(3)], Position(2))

    if when == "during":
        monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    with pytest.raises(CommittedMeanwhile):  # noqa: PT012 - one of the two
        log.table.append([log.file(2)], Position(1))
        other.table.position()
        other.table.append([other.file(3)], Position(2))
        log.table.replace([log.file(1), log.file(2)], [log.file(4)], Position(1, 0))
    assert (seqs(tmp_path), other.table.position()) == ([1, 2, 3], Position(2))


async def test_what_can_have_no_log_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigurationError, match="can't be written to 'hdfs://"):
        check_formats(["delta"], "hdfs://host/archive")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'headrace\[spark,delta\]'"):
        check_formats(["delta"], "file:///archive")
