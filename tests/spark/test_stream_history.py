"""`history`: an archive and the stream behind it are read as one, without a gap or a double."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest

from headrace import store, sweep
from headrace.model.errors import ConfigurationError, InvalidInput, UnknownStream
from headrace_spark import history
from headrace_spark.pipelines.archive import archive
from tests.spark.filling import fill, in_segments, publish
from tests.spark.test_archive import kill
from tests.spark.test_source_planning import draw_again

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.asyncio


class Reader:
    """Archives the stream `orders`, and reads its history, outside of the event loop."""

    def __init__(self, spark: SparkSession, dsn: str, path: Path) -> None:
        self.spark, self.dsn, self.path = spark, dsn, path

    async def archive(self, **options: Any) -> None:
        await anyio.to_thread.run_sync(
            lambda: archive("orders", self.path, spark=self.spark, database=self.dsn, **options)
        )

    async def seqs(self, **options: Any) -> list[int]:
        """The seqs of the history, each as often as it is there."""

        def read() -> list[int]:
            found = history("orders", self.path, spark=self.spark, database=self.dsn, **options)
            return sorted(row.seq for row in found.select("seq").collect())

        return await anyio.to_thread.run_sync(read)


@pytest.fixture
def reader(spark: SparkSession, dsn: str, tmp_path: Path) -> Reader:
    return Reader(spark, dsn, tmp_path / "archive")


async def test_each_message_is_there_once_whether_it_is_archived_or_not(
    reader: Reader, database: store.Database
) -> None:
    await fill(database, "orders", 100, days=2)
    await reader.archive(max_rows=30)
    assert await reader.seqs() == list(range(1, 101))
    await publish(database, "orders", 100, 120)
    assert await reader.seqs() == list(range(1, 121))
    await reader.archive()
    assert await reader.seqs() == list(range(1, 121))


async def test_the_columns_are_those_of_the_stream(reader: Reader, database: store.Database) -> None:
    await fill(database, "orders", 3)
    await reader.archive()
    await publish(database, "orders", 3, 4)

    def read() -> list[Any]:
        return history("orders", reader.path, spark=reader.spark, database=reader.dsn).orderBy("seq").collect()

    rows = await anyio.to_thread.run_sync(read)
    assert [tuple(row.asDict()) for row in rows] == [("key", "seq", "headers", "created_at", "data")] * 4
    assert [(row.key, row.data.replace(" ", "")) for row in rows][-2:] == [
        ("orders.3", '{"n":3}'),
        ("orders.4", '{"n":4}'),
    ]


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("before the manifest", marks=pytest.mark.long),
        "after the manifest",
        "between the moves",
        pytest.param("after the moves", marks=pytest.mark.long),
    ],
)
async def test_an_archive_that_was_killed_in_a_batch_leaves_no_gap_and_no_double(
    at: str, reader: Reader, database: store.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database, "orders", 100, days=2)
    with monkeypatch.context() as patched:
        kill(patched, at)
        with pytest.raises(Exception, match="Killed"):
            await reader.archive()
    assert await reader.seqs() == list(range(1, 101))


async def test_what_retention_has_removed_from_the_stream_is_read_from_the_archive(
    reader: Reader, database: store.Database
) -> None:
    await in_segments(database, retention="interest")
    await publish(database, "orders", 0, 55)
    await reader.archive(consumer="archive")
    for _ in range(3):
        await sweep(database)
    left = await database.fetchval("select min(seq) from headrace_streams.orders")
    assert left > 10
    await publish(database, "orders", 55, 60)
    assert await reader.seqs() == list(range(1, 61))


async def test_a_range_of_seqs_or_times_is_cut_out(reader: Reader, database: store.Database) -> None:
    await fill(database, "orders", 60)
    await database.fetch(
        "update headrace_streams.orders set created_at = timestamptz '2020-01-01 00:00+00' + (seq - 1) * interval '1 hour'"
    )
    await reader.archive(max_rows=20)
    await publish(database, "orders", 60, 70)
    assert await reader.seqs(start=15, end=65) == list(range(15, 66))
    assert await reader.seqs(start=21, end=40) == list(range(21, 41))
    assert await reader.seqs(start=66) == list(range(66, 71))
    assert await reader.seqs(end=1) == [1]
    day = {"start": datetime(2020, 1, 2, tzinfo=UTC), "end": datetime(2020, 1, 3, tzinfo=UTC)}
    assert await reader.seqs(**day) == list(range(25, 49))
    assert await reader.seqs(end="2019-01-01T00:00:00Z") == []


async def test_files_that_can_have_nothing_of_the_range_are_not_read(reader: Reader, database: store.Database) -> None:
    await fill(database, "orders", 60)
    await database.fetch(
        "update headrace_streams.orders set created_at = timestamptz '2020-01-01 12:00+00' + (seq - 1) / 20 * interval '1 day'"
    )
    await reader.archive(max_rows=30)
    for place in reader.path.glob("day=2020-01-0[13]/*.parquet"):
        place.write_bytes(b"not read")
    times = {"start": "2020-01-02T00:00:00Z", "end": "2020-01-03T00:00:00Z"}
    assert await reader.seqs(**times) == list(range(21, 41))


async def test_the_filter_and_the_condition_of_the_archive_hold_for_the_stream(
    reader: Reader, database: store.Database
) -> None:
    await fill(database, "orders", 50)
    await reader.archive(filter="orders.3", where="data.n > 10")
    await publish(database, "orders", 50, 80)
    assert await reader.seqs() == [n for n in range(1, 81) if n % 7 == 3 and n > 10]


async def test_without_a_batch_all_is_read_from_the_stream(reader: Reader, database: store.Database) -> None:
    await fill(database, "orders", 0)
    await reader.archive()
    assert await reader.seqs() == []
    await publish(database, "orders", 0, 5)
    assert await reader.seqs() == [1, 2, 3, 4, 5]


async def test_what_is_no_archive_of_the_stream_is_refused(reader: Reader, database: store.Database) -> None:
    await fill(database, "orders", 5)
    with pytest.raises(InvalidInput, match="holds no archive"):
        await reader.seqs()
    await reader.archive()
    with pytest.raises(ConfigurationError, match="start='soon' is not a position"):
        await reader.seqs(start="soon")
    await store.delete_stream(database, "orders")
    with pytest.raises(UnknownStream):
        await reader.seqs()
    await fill(database, "orders", 9)
    with pytest.raises(UnknownStream, match="was deleted"):
        await reader.seqs()
    await fill(database, "bills", 5)
    with pytest.raises(InvalidInput, match="holds an archive of the stream 'orders'"):
        history("bills", reader.path, spark=reader.spark, database=reader.dsn)


async def test_what_an_archive_s_filter_left_out_may_be_removed_from_the_stream(
    reader: Reader, database: store.Database
) -> None:
    """The archive has no file of such messages. Its position is behind them."""
    await in_segments(database, retention="interest")
    await store.publish(database, "orders", "wanted", "1")
    await publish(database, "orders", 1, 55)
    await reader.archive(consumer="archive", filter="wanted")
    for _ in range(3):
        await sweep(database)
    assert await database.fetchval("select min(seq) from headrace_streams.orders") > 10
    assert await reader.seqs() == [1]
    await store.publish(database, "orders", "wanted", "1")
    assert await reader.seqs() == [1, 56]


async def test_an_archive_of_messages_that_the_database_has_lost_is_not_joined_with_later_ones(
    reader: Reader, database: store.Database
) -> None:
    """After a restore, other messages have their seqs."""
    await fill(database, "orders", 10)
    await reader.archive()
    await draw_again(database, 6)
    with pytest.raises(InvalidInput, match=r"up to seq 10, and its last one is 6\. The database is older"):
        await reader.seqs()
    await publish(database, "orders", 6, 12)
    with pytest.raises(InvalidInput, match=r"its message 10 is another one now.*Read the archive in .* alone"):
        await reader.seqs()
