"""The pipeline `merge`: larger files replace small ones, and at any moment each message is once in a listing, in the
history, in a replay and in the Delta log.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pyarrow.parquet
import pytest
from deltalake import DeltaTable

from headrace import store
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace_spark import history, replay
from headrace_spark.lake.delta import DeltaLog
from headrace_spark.lake.files import CantKeepFiles, LocalFiles
from headrace_spark.lake.layout import Layout
from headrace_spark.lake.merges import Merges, current
from headrace_spark.pipelines.archive import archive
from headrace_spark.pipelines.database import open_database
from headrace_spark.pipelines.merge import merge
from headrace_spark.pipelines.running import Report
from tests.spark.filling import archived, fill, publish, read
from tests.spark.test_archive import Killed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.asyncio

THIRD_DAY = datetime(2030, 1, 3, 12, tzinfo=UTC)


class Lake:
    """The archive of the stream `orders`, and its readers."""

    def __init__(self, spark: SparkSession, dsn: str, path: Path) -> None:
        self.spark, self.dsn, self.path = spark, dsn, path
        self.layout = Layout(LocalFiles(str(path)))

    async def archive(self, **options: Any) -> None:
        await anyio.to_thread.run_sync(
            lambda: archive("orders", self.path, spark=self.spark, database=self.dsn, partitions=1, **options)
        )

    async def merge(self, now: datetime = THIRD_DAY, **options: Any) -> Report:
        return await anyio.to_thread.run_sync(
            lambda: merge(self.path, spark=self.spark, database=self.dsn, now=now, **options)
        )

    async def replay(self, into: str) -> Report:
        return await anyio.to_thread.run_sync(
            lambda: replay(
                lambda rows: rows, into, path=self.path, checkpoint=self.path.parent / into, spark=self.spark,
                database=self.dsn,
            )
        )  # fmt: skip

    async def history(self, **options: Any) -> list[int]:
        """The seqs of the history, each as often as it is there."""

        def rows() -> list[int]:
            found = history("orders", self.path, spark=self.spark, database=self.dsn, **options)
            return sorted(row.seq for row in found.select("seq").collect())

        return await anyio.to_thread.run_sync(rows)

    def listed(self) -> list[int]:
        """The seqs in the files that a listing shows."""
        found = archived(self.path)["seq"].to_pylist() if list(self.path.glob("day=*/*.parquet")) else []
        return sorted(found)

    def current(self) -> list[int]:
        """The seqs in the files that the manifests show."""
        merges = Merges(self.layout).all()
        places = [part.place for part in current(self.layout.complete(), merges)]
        tables = [pyarrow.parquet.read_table(self.path / place, columns=["seq"]) for place in places]
        return sorted(seq for table in tables for seq in table["seq"].to_pylist())

    def delta(self) -> list[int]:
        return sorted(DeltaTable(self.path).to_pyarrow_table()["seq"].to_pylist())

    def small(self, day: int) -> list[str]:
        return sorted(path.name for path in self.path.glob(f"day=2030-01-0{day}/*.parquet"))


@pytest.fixture
def lake(spark: SparkSession, dsn: str, tmp_path: Path) -> Lake:
    return Lake(spark, dsn, tmp_path / "archive")


@pytest.mark.long
async def test_closed_days_become_one_file_each_while_readers_see_each_message_once(
    lake: Lake, database: store.Database
) -> None:
    await fill(database, "orders", 60, days=3)
    await lake.archive(max_rows=5, delta=True)
    before, everything = lake.small(1), list(range(1, 61))
    assert len(before) == 4
    merged = await lake.merge()
    assert (merged.rows, merged.batches, merged.files, merged.first, merged.last) == (40, 2, 2, 1, 40)
    assert lake.small(1) == before, "the small files stay for the grace time"
    assert lake.listed() == lake.current() == lake.delta() == await lake.history() == everything
    assert len(DeltaTable(lake.path).file_uris()) == 2 + len(lake.small(3))
    assert await lake.history(start=15, end=25) == list(range(15, 26))

    assert (await lake.merge(THIRD_DAY + timedelta(hours=11))).batches == 0, "nothing is new, and the grace time lasts"
    shown = await lake.merge(THIRD_DAY + timedelta(hours=25), compression="none")
    assert (shown.rows, shown.batches) == (55, 3), "the third day is closed, and the merged files are shown"
    assert (len(lake.small(1)), len(lake.small(2))) == (1, 1)
    assert lake.listed() == lake.current() == lake.delta() == await lake.history() == everything
    hidden = list(lake.path.glob("_headrace/merged/*/*/part-*"))
    assert len(hidden) == 3, "they stay for the grace time, since readers may have opened them"

    await lake.merge(THIRD_DAY + timedelta(hours=50))
    await lake.merge(THIRD_DAY + timedelta(hours=75))
    assert not list(lake.path.glob("_headrace/merged/*"))
    assert lake.listed() == lake.current() == lake.delta() == await lake.history() == everything
    table = archived(lake.path)
    assert table.column_names == ["key", "seq", "headers", "created_at", "data", "day"]
    assert str(table["created_at"].type) == "timestamp[us, tz=UTC]"


async def test_merged_files_are_sorted_and_have_at_most_so_many_rows(lake: Lake, database: store.Database) -> None:
    await fill(database, "orders", 40, days=2)
    await lake.archive(max_rows=5)
    (lake.path / "day=unknown").mkdir()  # it is no part of the archive
    await lake.merge(rows_per_file=8)
    tables = [pyarrow.parquet.read_table(path) for path in lake.path.glob("_headrace/merged/*/day=2030-01-01/part-*")]
    found = sorted(table["seq"].to_pylist() for table in tables)
    assert [seq for seqs in found for seq in seqs] == list(range(1, 21))
    assert 2 < len(found) < 6
    assert max(map(len, found)) <= 8


@pytest.mark.long
async def test_the_last_batch_and_days_that_last_stay_as_they_are(lake: Lake, database: store.Database) -> None:
    await fill(database, "orders", 20)
    await lake.archive(max_rows=10)
    day = datetime.now(UTC) + timedelta(days=1)
    assert (await lake.merge(datetime.now(UTC))).batches == 0, "the day lasts"
    assert (await lake.merge(day)).batches == 0, "there is one file besides that of the last batch"
    await publish(database, "orders", 20, 30)
    await lake.archive()
    assert (await lake.merge(day)).rows == 20
    await publish(database, "orders", 30, 50)
    await lake.archive(max_rows=10)
    assert (await lake.merge(day)).rows == 20, "what came later is merged apart"
    assert lake.current() == lake.listed() == list(range(1, 51))


@pytest.mark.long
async def test_a_replay_is_by_batch_whatever_was_merged(lake: Lake, database: store.Database) -> None:
    await fill(database, "orders", 20, days=2)
    for copy in ("early", "late"):
        await store.create_stream(database, copy)
    await lake.archive(max_rows=5)
    assert (await lake.replay("early")).batches == 4
    await publish(database, "orders", 20, 30)
    await lake.archive()
    await lake.merge(grace=0)
    await lake.merge(grace=0)
    assert len(lake.small(1)) == 1
    assert (await lake.replay("early")).rows == 10
    assert (await lake.replay("late")).rows == 30
    messages = [message[1:] for message in await read(database, "orders")]
    assert sorted(message[1:] for message in await read(database, "early")) == sorted(messages)
    assert sorted(message[1:] for message in await read(database, "late")) == sorted(messages)


@pytest.mark.long
async def test_a_delta_log_that_comes_after_merges_has_the_files_that_are_there(
    lake: Lake, database: store.Database
) -> None:
    await fill(database, "orders", 20, days=2)
    await lake.archive(max_rows=5)
    await lake.merge(grace=0)
    await lake.merge(grace=0)
    await publish(database, "orders", 20, 25)
    await lake.archive(delta=True)
    assert lake.delta() == list(range(1, 26))
    assert (DeltaTable(lake.path).version(), len(DeltaTable(lake.path).file_uris())) == (2, 1 + 2 + 1)


class Cut:
    """Raises `Killed` at the step with that number, of those that change files or tables."""

    def __init__(self, patched: pytest.MonkeyPatch, step: int) -> None:
        self.steps, self._step = 0, step
        for owner, name in (
            (LocalFiles, "create"),
            (LocalFiles, "move"),
            (LocalFiles, "remove"),
            (DeltaLog, "_commit"),
        ):
            patched.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.steps == self._step:
                raise Killed
            self.steps += 1
            return method(*arguments, **options)

        return call


@pytest.mark.torture
async def test_a_merge_that_is_killed_between_any_two_steps_changes_nothing_for_readers(
    lake: Lake, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database, "orders", 40, days=2)
    await lake.archive(max_rows=5, delta=True)
    everything, now = list(range(1, 41)), THIRD_DAY
    killed, step, complete = 0, 0, 0
    while complete < 3:
        with monkeypatch.context() as patched:
            cut = Cut(patched, step)
            try:
                await lake.merge(now)
            except Killed:
                killed, step = killed + 1, step + 1
            else:
                complete, step = complete + 1, 0
                now += timedelta(days=2)
                assert lake.listed() == everything
        listed = lake.listed()
        assert len(listed) == len(set(listed)), f"a row is listed twice after step {cut.steps}"
        assert lake.current() == lake.delta() == everything
    assert killed > 15
    assert await lake.history() == everything
    await lake.merge(now)
    assert not list(lake.path.glob("_headrace/merged/*"))
    assert lake.small(1) == ["seq-0000000000000000001-0000000000000000020-merged-2-0.parquet"]


async def test_a_merge_that_was_killed_among_its_moves_is_not_read_before_it_is_complete(
    lake: Lake, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database, "orders", 40, days=2)
    await lake.archive(max_rows=5)
    await lake.merge()

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "move", killed)
        with pytest.raises(Killed):
            await lake.merge(THIRD_DAY + timedelta(days=2))
    assert lake.current() == await lake.history() == list(range(1, 41))
    assert lake.listed() == list(range(21, 41)), "the first day is missing in a listing until the next run"
    await lake.merge(THIRD_DAY + timedelta(days=2))
    assert lake.listed() == lake.current() == list(range(1, 41))


async def test_one_process_at_a_time_merges_an_archive(
    lake: Lake, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_spark.pipelines.database.LOCK_TIMEOUT", 0.2)
    await fill(database, "orders", 4, days=2)
    await lake.archive(max_rows=1)
    identity = lake.layout.identity()
    assert identity is not None

    def merge_beside() -> None:
        with open_database(lake.dsn) as other, other.exclusive_lock(f"headrace merge {identity.id}"):
            merge(lake.path, spark=lake.spark, database=lake.dsn, now=THIRD_DAY)

    with pytest.raises(CantKeepFiles, match=r"Another process merges the archive in .*\. Run one at a time"):
        await anyio.to_thread.run_sync(merge_beside)
    assert (await lake.merge()).rows == 2


async def test_what_cannot_be_merged_is_reported_in_a_sentence(lake: Lake, database: store.Database) -> None:
    with pytest.raises(InvalidInput, match="holds no archive"):
        await lake.merge()
    with pytest.raises(ConfigurationError, match="compression='bzip' is invalid"):
        await lake.merge(compression="bzip")
    with pytest.raises(ConfigurationError, match="grace"):
        await lake.merge(grace="-1s")
    with pytest.raises(ConfigurationError, match=r"now=2030-01-31 00:00:00 has no time zone\. Write .*tzinfo"):
        await lake.merge(now=datetime(2030, 1, 31))  # noqa: DTZ001


@pytest.mark.long
async def test_a_file_that_a_session_ignores_is_not_replaced(lake: Lake, database: store.Database) -> None:
    await fill(database, "orders", 20, days=2)
    await lake.archive(max_rows=5)
    broken = lake.path / "day=2030-01-01" / lake.small(1)[1]
    broken.write_bytes(b"no parquet")
    setting = "spark.sql.files.ignoreCorruptFiles"
    lake.spark.conf.set(setting, "true")
    try:
        with pytest.raises(Exception, match="FAILED_READ_FILE"):
            await lake.merge()
    finally:
        lake.spark.conf.unset(setting)
    assert Merges(lake.layout).numbers() == []
