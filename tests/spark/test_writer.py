"""`df.write` and `df.writeStream` on a real session. All that is written is published atomically and
once, whatever is run again.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from headrace_spark.session import session
from tests.spark.written import Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def written(dsn: str) -> Written:
    written = Written(dsn)
    written.create("orders")
    return written


def save(frame: DataFrame, written: Written, **options: str) -> None:
    frame.write.format("headrace").mode("append").options(
        **{"database": written.url, "stream": "orders", **options}
    ).save()


def test_a_dataframe_becomes_messages_in_the_order_of_its_partitions(spark: SparkSession, written: Written) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "concat('k.', id) as key", "id as n", "cast(id as decimal(10, 2)) as price", "map('h', 'x') as headers"
    )
    save(frame, written)
    messages = written.messages()
    assert [key for key, _ in messages] == [f"k.{n}" for n in range(100)]
    assert [json.loads(data) for _, data in messages] == [{"n": n, "price": f"{n}.00"} for n in range(100)]
    assert written.fetch("select distinct headers::text from headrace_streams.orders") == [('{"h":"x"}',)]
    assert written.staged() == 0


def test_a_save_with_an_id_is_published_once_however_often_it_is_repeated(
    spark: SparkSession, written: Written
) -> None:
    def save_batch(frame: DataFrame, batch: int) -> None:
        save(frame, written, writeId=f"batch-{batch}")

    frame = spark.createDataFrame([("a", "1"), ("b", "2")], "key string, data string").coalesce(1)
    for batch in (0, 0, 1):
        save_batch(frame, batch)
    assert written.messages() == [("a", "1"), ("b", "2")] * 2


def test_a_row_that_cant_be_published_fails_the_save_and_nothing_is_there(
    spark: SparkSession, written: Written
) -> None:
    frame = spark.range(0, 50, 1, 1).selectExpr("concat('k.', id) as key", "if(id = 40, 'no json', '1') as data")
    with pytest.raises(PySparkException, match=r"The row with the key 'k\.40' can't be published: its data, a string,"):
        save(frame, written)
    assert written.messages() == []
    assert written.staged() == 0


def test_what_cant_be_written_is_reported_before_any_task(spark: SparkSession, written: Written) -> None:
    frame = spark.range(1).selectExpr("'a' as key", "id")
    for options, detail in [({"stream": "oders"}, "There is no stream 'oders'"), ({"writeIdd": "x"}, "Did you mean writeId")]:  # fmt: skip
        with pytest.raises(PySparkException, match=detail):
            save(frame, written, **options)
    with pytest.raises(PySparkException, match="has no string column `key`"):
        save(spark.range(1), written)
    with pytest.raises(PySparkException, match=r"Write with \.mode\('append'\)"):
        frame.write.format("headrace").mode("overwrite").options(database=written.url, stream="orders").save()


class Files:
    """JSON lines in files, which a streaming query reads one by one, and its checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.checkpoint = directory / "in", directory / "checkpoint"
        self.directory.mkdir()

    def add(self, number: int, *keys: str) -> None:
        path = self.directory / f"{number:03}.txt"
        path.write_text("".join(f"{key}\n" for key in keys))
        os.utime(path, (1_000_000_000 + number,) * 2)  # Spark reads the oldest first

    def query(self, spark: SparkSession, written: Written, *, partitions: int = 1, **options: str) -> Any:
        """Start the query, which reads the existing files, one in each micro-batch."""
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(self.directory))
        frame = lines.selectExpr("value as key", "'{}' as data")
        return (
            (frame.coalesce(1) if partitions == 1 else frame.repartition(partitions, "key"))
            .writeStream.format("headrace")
            .options(**{"database": written.url, "stream": "orders", **options})
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def run(self, spark: SparkSession, written: Written, **options: Any) -> None:
        query = self.query(spark, written, **options)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def forget_last_commit(self) -> None:
        """Simulate that the driver died after the commit in Postgres, before Spark recorded its own commit."""
        commits = self.checkpoint / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_micro_batches_are_published_once_through_restarts_that_run_them_again(
    spark: SparkSession, written: Written, tmp_path: Path
) -> None:
    files = Files(tmp_path)
    files.add(0, "a", "b", "c")
    files.add(1, "d")
    files.run(spark, written)
    assert written.keys() == ["a", "b", "c", "d"]
    assert written.writes() == [(1, 4)]

    files.forget_last_commit()
    files.add(2, "e", "f")
    files.run(spark, written, partitions=2)  # the batch that runs again has different partitions
    assert written.keys()[:4] == ["a", "b", "c", "d"]
    assert sorted(written.keys()[4:]) == ["e", "f"]
    assert written.writes() == [(2, 6)]
    assert written.staged() == 0


def test_a_micro_batch_that_failed_is_written_by_the_restart(
    spark: SparkSession, written: Written, tmp_path: Path
) -> None:
    """A file has a line that can't be a key, until the file is corrected."""
    files = Files(tmp_path)
    files.add(0, "a")
    files.run(spark, written)
    files.add(1, "b", "not..a.key")
    files.add(2, "c")
    with pytest.raises(StreamingQueryException, match=r"The row with the key 'not\.\.a\.key' can't be published"):
        files.run(spark, written)
    assert written.keys() == ["a"]
    files.add(1, "b", "is.a.key")
    files.run(spark, written)
    assert written.keys() == ["a", "b", "is.a.key", "c"]
    assert written.staged() == 0


def test_a_thread_that_asks_for_the_session_can_write(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    """Spark looks for data sources in Python in the session that is active in the thread, and a new one has none."""
    files = Files(tmp_path)
    files.add(0, "a")
    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(Exception, match="Failed to find the data source: headrace"):
            thread.submit(files.run, spark, written).result()
        thread.submit(lambda: files.run(session(), written)).result()
    assert written.keys() == ["a"]


def test_two_queries_write_into_one_stream_as_two_writes(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        files = Files(tmp_path / name)
        files.add(0, name)
        files.run(spark, written)
    assert written.keys() == ["one", "two"]
    assert written.writes() == [(0, 1), (0, 1)]


def test_each_batch_of_a_query_can_be_saved_under_an_id(spark: SparkSession, written: Written, tmp_path: Path) -> None:
    """foreachBatch runs a batch again after a failure. Here the failure comes after the batch was saved."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("a\nb\n")
    fails = [True]

    def save_batch(frame: DataFrame, batch: int) -> None:
        save(frame.coalesce(1), written, writeId=f"copy-{batch}")
        if fails:
            fails.clear()
            raise RuntimeError("after it was saved")

    def run() -> None:
        frame = spark.readStream.text(str(tmp_path / "in")).selectExpr("value as key", "'1' as data")
        query = (
            frame.writeStream.foreachBatch(save_batch)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(StreamingQueryException, match="after it was saved"):
        run()
    run()
    assert written.keys() == ["a", "b"]


def test_an_id_in_foreach_batch_belongs_to_the_checkpoint_of_its_query(
    spark: SparkSession, written: Written, tmp_path: Path
) -> None:
    """A query with another checkpoint numbers its batches from 0 again. Their ids are not those of the first query's."""
    (tmp_path / "in").mkdir()

    def run(checkpoint: str, key: str) -> None:
        (tmp_path / "in" / "0.txt").write_text(f"{key}\n")
        frame = spark.readStream.text(str(tmp_path / "in")).selectExpr("value as key", "'1' as data")
        query = (
            frame.writeStream.foreachBatch(lambda batch, number: save(batch, written, writeId=f"hourly-{number}"))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run("first", "a")
    run("second", "b")
    assert written.keys() == ["a", "b"]


def test_rows_that_cant_be_messages_are_set_aside_and_all_others_are_published_once(
    spark: SparkSession, written: Written, tmp_path: Path
) -> None:
    """A batch that runs again sets nothing aside twice."""
    written.create("bad")
    files = Files(tmp_path)
    files.add(0, "a", "not..a.key", "b", "c d", "e", "f")
    files.add(1, "g")
    files.run(spark, written, badRows="bad")
    files.forget_last_commit()
    files.add(2, "h", "i.*")
    files.run(spark, written, badRows="bad", partitions=2)
    assert sorted(written.keys()) == ["a", "b", "e", "f", "g", "h"]
    bad = [(key, json.loads(data)) for key, data in written.messages("bad")]
    assert [(key, data["row"]["key"]) for key, data in bad] == [
        ("orders", "not..a.key"),
        ("orders", "c d"),
        ("orders", "i.*"),
    ]
    assert "a key has 1 to 1024 bytes" in bad[0][1]["error"]
    assert written.staged() == 0


def test_each_kind_of_row_that_cant_be_a_message_is_set_aside_with_its_reason(
    spark: SparkSession, written: Written
) -> None:
    written.create("bad")
    frame = spark.createDataFrame(
        [("a", "1", None), (None, "2", None), ("b", None, None), ("c", "{no", None), ("d", '"\\u0000"', None), ("e", "5", "[]"), ("f\0", "6", None), ("g", "7", "{}")],
        "key string, data string, headers string",
    ).coalesce(1)  # fmt: skip
    save(frame, written, badRows="bad", writeId="w")
    save(frame, written, badRows="bad", writeId="w")
    assert written.messages() == [("a", "1"), ("g", "7")]
    bad = [json.loads(data) for _, data in written.messages("bad")]
    assert {(one["row"]["key"], one["row"]["data"]) for one in bad} == {
        (None, "2"), ("b", None), ("c", "{no"), ("d", '"\\u2400"'), ("e", "5"), ("f\u2400", "6"),
    }  # fmt: skip
    assert all("have a null" in one["error"] or "can't be published" in one["error"] for one in bad)
    late = spark.sql(
        "select 'k.' || id as key, if(id = 3, timestamp_micros(253402300800000000), timestamp'2030-01-01') as at from range(6)"
    )
    save(late.coalesce(1), written, badRows="bad")
    assert written.keys()[2:] == ["k.0", "k.1", "k.2", "k.4", "k.5"]
    assert "10000-01-01" in json.loads(written.messages("bad")[-1][1])["row"]["at"]
    with pytest.raises(PySparkException, match="badRows='orders' is the stream of the write"):
        save(frame, written, badRows="orders")
    with pytest.raises(PySparkException, match="There is no stream 'none'"):
        save(frame, written, badRows="none")
