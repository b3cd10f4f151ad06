"""The pipeline `archive`: each message is written once, in files of its day, despite kills, and
retention waits for it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace import store, sweep
from headrace.model.errors import ConfigurationError, InvalidInput, UnknownStream
from headrace_spark.lake.files import CantKeepFiles, Files, HadoopFiles, LocalFiles
from headrace_spark.lake.layout import Identity, Layout
from headrace_spark.pipelines.archive import _run, archive
from headrace_spark.pipelines.database import open_database
from headrace_spark.pipelines.running import Report
from headrace_spark.session import SparkUnavailable
from tests.spark.filling import archived, fill, in_segments, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.asyncio


@pytest.fixture
def run(spark: SparkSession, dsn: str, tmp_path: Path) -> Any:
    """Archive the stream `orders`, outside of the event loop."""

    async def run(**options: Any) -> Report:
        path = options.pop("path", tmp_path / "archive")
        stream = options.pop("stream", "orders")

        def work() -> Report:
            return archive(stream, path, spark=spark, database=dsn, partitions=2, **options)

        return await anyio.to_thread.run_sync(work)

    return run


async def test_each_message_lies_once_in_a_file_of_its_day_and_the_next_run_takes_what_is_new(
    run: Any, database: store.Database, tmp_path: Path
) -> None:
    await fill(database, "orders", 300, days=3)
    first = await run(max_rows=120)
    assert (first.rows, first.batches, first.first, first.last) == (300, 3, 1, 300)
    days = {path.name for path in (tmp_path / "archive").glob("day=*")}
    assert days == {"day=2030-01-01", "day=2030-01-02", "day=2030-01-03"}

    await publish(database, "orders", 300, 350)
    second = await run()
    assert (second.rows, second.first, second.last) == (50, 301, 350)
    table = archived(tmp_path / "archive")
    assert table["seq"].to_pylist() == list(range(1, 351))
    assert table.column_names == ["key", "seq", "headers", "created_at", "data", "day"]
    assert table["data"][6].as_py() == '{"n" : 7}'
    assert table["created_at"].type == pa.timestamp("us", tz="UTC")
    assert (await run()).rows == 0


class Killed(Exception):
    """Simulates a SIGKILL. Nothing is cleaned up after it."""


@pytest.mark.parametrize(
    "at",
    [
        "before the manifest",
        pytest.param("after the manifest", marks=pytest.mark.long),
        "between the moves",
        pytest.param("after the moves", marks=pytest.mark.long),
    ],
)
async def test_a_run_that_is_killed_leaves_no_row_twice_and_the_next_one_none_missing(
    at: str, run: Any, database: store.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database, "orders", 100, days=2)
    with monkeypatch.context() as patched:
        kill(patched, at)
        with pytest.raises(Exception, match="Killed"):
            await run()
    left = (tmp_path / "archive").glob("day=*/*.parquet")
    seen = [seq for path in left for seq in pyarrow.parquet.read_table(path)["seq"].to_pylist()]
    assert len(seen) == len(set(seen)) == {"between the moves": 50, "after the moves": 100}.get(at, 0)

    await publish(database, "orders", 100, 120)
    await run()
    assert archived(tmp_path / "archive")["seq"].to_pylist() == list(range(1, 121))
    assert not list((tmp_path / "archive/_headrace/writing").rglob("*.parquet"))


def kill(patched: pytest.MonkeyPatch, at: str) -> None:
    """Make a run break off at that point."""
    create, move, remove = LocalFiles.create, LocalFiles.move, LocalFiles.remove
    moved: list[str] = []

    def creating(self: LocalFiles, name: str, content: bytes) -> bool:
        if "batches" not in name or at.endswith("moves"):
            return create(self, name, content)
        if at == "after the manifest":
            create(self, name, content)
        raise Killed

    def moving(self: LocalFiles, source: str, target: str) -> None:
        if at == "between the moves" and moved:
            raise Killed
        moved.append(target)
        move(self, source, target)

    def removing(self: LocalFiles, directory: str) -> None:
        if at == "after the moves" and moved:
            raise Killed
        remove(self, directory)

    patched.setattr(LocalFiles, "create", creating)
    patched.setattr(LocalFiles, "move", moving)
    patched.setattr(LocalFiles, "remove", removing)


@pytest.mark.long
async def test_a_batch_that_is_committed_is_not_written_again_when_spark_has_forgotten_it(
    run: Any, database: store.Database, tmp_path: Path
) -> None:
    await fill(database, "orders", 40)
    await run()
    before = sorted((tmp_path / "archive").glob("day=*/*.parquet"))
    for name in ("0", ".0.crc"):
        (tmp_path / "archive/_headrace/checkpoint/commits" / name).unlink(missing_ok=True)
    assert (await run()).rows == 0
    assert sorted((tmp_path / "archive").glob("day=*/*.parquet")) == before


async def test_retention_waits_for_the_archive_and_then_drops_what_is_archived(
    run: Any, database: store.Database, tmp_path: Path
) -> None:
    await in_segments(database, retention="interest")
    await publish(database, "orders", 0, 35)
    await run(consumer="archive", where="data.n != 7", max_rows=20)
    await sweep(database)
    assert (await store.stream(database, "orders")).first_seq == 31, (
        "what is archived has gone, but for the last segment"
    )

    await publish(database, "orders", 35, 62)
    await sweep(database)
    assert (await store.stream(database, "orders")).first_seq == 31, "what isn't archived yet stays"
    await run(consumer="archive", where="data.n != 7", max_rows=20)
    await sweep(database)
    assert (await store.stream(database, "orders")).first_seq == 61
    assert archived(tmp_path / "archive")["seq"].to_pylist() == [n for n in range(1, 63) if n != 7]


@pytest.mark.long
async def test_what_retention_removed_before_it_was_archived_is_reported(run: Any, database: store.Database) -> None:
    await in_segments(database, retain_up_to=60)
    await publish(database, "orders", 0, 15)
    await run()
    await publish(database, "orders", 15, 35)
    await sweep(database, now=datetime.now(UTC) + timedelta(hours=1))
    await publish(database, "orders", 35, 40)
    left = await store.stream(database, "orders")
    assert (left.first_seq, left.messages) == (36, 5)
    with pytest.raises(InvalidInput, match="removed by retention"):
        await run()
    assert (await run(fail_on_data_loss=False)).rows == 5


async def test_an_archive_is_of_one_stream_and_of_one_selection(
    run: Any, database: store.Database, tmp_path: Path
) -> None:
    await fill(database, "orders", 5)
    await store.create_stream(database, "others")
    await run()
    with pytest.raises(InvalidInput, match="an archive of the stream 'orders', and not of the stream 'others'"):
        await run(stream="others")
    with pytest.raises(InvalidInput, match=r"and not of the stream 'orders', filter 'a\.>'"):
        await run(filter="a.>")
    for path in (tmp_path / "archive/_headrace/checkpoint").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(InvalidInput, match="has lost its checkpoint"):
        await run()


async def test_one_process_at_a_time_is_at_work_on_an_archive(
    run: Any, database: store.Database, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process would take the files that are being written for those of a killed run, and remove them."""
    monkeypatch.setattr("headrace_spark.pipelines.database.LOCK_TIMEOUT", 0.2)
    await fill(database, "orders", 3)
    archive_id = Layout(LocalFiles(str(tmp_path / "archive"))).open(Identity(stream="orders"))
    assert archive_id

    def begin() -> AbstractContextManager[bool]:
        with open_database(dsn) as database_connection:
            return database_connection.exclusive_lock(f"headrace archive {archive_id}")

    exclusive_lock = await anyio.to_thread.run_sync(begin)
    with exclusive_lock as nobody_else:
        assert nobody_else
        with pytest.raises(CantKeepFiles, match=r"Another process is writing the archive in .*\. Run one at a time"):
            await run()
    assert (await run()).rows == 3


async def test_what_cannot_be_archived_is_reported_in_a_sentence(
    run: Any, database: store.Database, tmp_path: Path
) -> None:
    with pytest.raises(UnknownStream, match="nothing"):
        await run(stream="nothing")
    await fill(database, "orders", 1)
    (tmp_path / "file").write_text("x")
    with pytest.raises(CantKeepFiles, match="is a file"):
        await run(path=tmp_path / "file")
    with pytest.raises(CantKeepFiles, match="is no archive"):
        await run(path=tmp_path)
    with pytest.raises(CantKeepFiles, match="nix"):
        await run(path="nix://a/b")
    with pytest.raises(ConfigurationError, match=r"compression='bzip' is invalid\. It must be one of"):
        await run(compression="bzip")


@pytest.mark.parametrize("kind", ["local", "hadoop", "hadoop without a context"])
async def test_files_are_made_in_one_step_and_moved_on_any_file_system(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    files: Files = LocalFiles(str(tmp_path)) if kind == "local" else HadoopFiles(str(tmp_path), spark)
    if kind == "hadoop without a context":  # as of a connector that has none for its scheme
        files._context = None  # type: ignore[attr-defined]
    assert files.names("a") == files.below("a") == []
    assert files.read("a/b.json") is None
    assert files.create("a/b.json", b"one")
    assert not files.create("a/b.json", b"two")
    assert files.read("a/b.json") == b"one"
    files.move("a/b.json", "c/d/e.json")
    files.move("a/b.json", "c/d/e.json")  # it has gone, so nothing happens
    assert [name for name in files.below("c") if not name.endswith(".crc")] == ["d/e.json"]
    assert files.read("c/d/e.json") == b"one"
    files.remove("c")
    files.remove("c")
    assert files.names("c") == []


@pytest.mark.parametrize("there", [b"one", b"on"], ids=["a whole copy", "a part of a copy"])
async def test_a_move_that_was_killed_between_its_copy_and_its_deletion_is_completed(
    there: bytes, spark: SparkSession, tmp_path: Path
) -> None:
    files = HadoopFiles(str(tmp_path), spark)
    assert files.create("from/a", b"one")
    assert files.create("to/a", there)
    files.move("from/a", "to/a")
    assert files.read("to/a") == b"one"
    assert files.read("from/a") is None


async def test_rows_of_a_task_that_was_given_up_are_not_archived(tmp_path: Path) -> None:
    """A task that continues while another attempt of it is committed may leave further files."""
    layout = Layout(LocalFiles(str(tmp_path)))
    written = layout.begin(0)
    for number in range(2):
        place = tmp_path / written / "day=2030-01-01" / f"part-{number}.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pa.table({"seq": [1, 2]}), place)
    with pytest.raises(CantKeepFiles, match="have 4 rows, and 2 were written"):
        layout.commit(0, written, rows=2, first=1, last=2)
    assert layout.batches() == []
    assert layout.commit(0, written, rows=4, first=1, last=2).rows == 4


@pytest.mark.parametrize("password", ["hunter2", "hunt/er2"])
async def test_a_url_with_a_password_is_refused_without_showing_it(
    password: str, run: Any, database: store.Database
) -> None:
    await store.create_stream(database, "orders")
    with pytest.raises(ConfigurationError, match=r"The path 's3a://…@lake/orders' has a password") as refused:
        await run(path=f"s3a://key:{password}@lake/orders")
    assert "er2" not in str(refused.value)


async def test_a_manifest_describes_its_batch(run: Any, database: store.Database, tmp_path: Path) -> None:
    await fill(database, "orders", 10)
    await run()
    layout = Layout(LocalFiles(str(tmp_path / "archive")))
    assert layout.open(Identity(stream="orders")) == layout.open(Identity(stream="orders")) != ""
    (manifest,) = layout.manifests()
    assert (manifest.batch, manifest.rows, manifest.first, manifest.last) == (0, 10, 1, 10)
    assert all((tmp_path / "archive" / place).is_file() for place in manifest.files.values())
    assert msgspec.json.encode(manifest)


class Lost:
    """Files, and a query that fails since Spark's Java is gone. The files are out of reach then, too."""

    root = "hdfs://host/archive"

    def __init__(self) -> None:
        self.lost = False

    def names(self, directory: str = "") -> list[str]:
        if self.lost:
            raise ConnectionRefusedError(111, "Connection refused")
        return []

    def option(self, *_: Any) -> Lost:
        return self

    def start(self) -> Any:
        self.lost = True
        raise SparkUnavailable("The connection to Spark was lost.")


async def test_a_java_that_dies_is_the_error_although_its_files_are_out_of_reach_too() -> None:
    lost: Any = Lost()
    with pytest.raises(SparkUnavailable, match="The connection to Spark was lost"):
        _run(lost, Layout(lost), Report(pipeline="archive", into=lost.root))
