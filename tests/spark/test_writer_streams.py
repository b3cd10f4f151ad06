"""A write whose rows name their streams publishes to all of them in one transaction, exactly once."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace.model.errors import ConfigurationError, InvalidInput, StreamFull, UnknownStream
from headrace_spark.frames import pieces
from headrace_spark.source.writer import HeadraceStreamWriter, HeadraceWriter
from tests.spark.test_writer import Files
from tests.spark.written import Written
from tests.support.logs import logged

SCHEMA = StructType().add("stream", "string").add("key", "string").add("data", "string")
NAMES = ("orders", "payments", "bad")

Row = tuple[str | None, str | None, str | None]


@pytest.fixture
def written(dsn: str) -> Written:
    written = Written(dsn)
    for name in NAMES:
        written.create(name)
    return written


def batch(*rows: Row) -> pa.RecordBatch:
    """Rows of a stream, a key and data, as Spark passes them."""
    columns = [pa.array([row[place] for row in rows], pa.string()) for place in range(3)]
    return pa.record_batch(columns, SCHEMA.names)


def save(written: Written, *tasks: pa.RecordBatch, **options: str) -> None:
    """Write as Spark does: each task on its own, and then the commit, or else the deletion of what is staged."""
    writer = HeadraceWriter({"database": written.url, **options}, SCHEMA, False)
    messages: list[Any] = []
    try:
        messages += [writer.write(iter([rows])) for rows in tasks]
        writer.commit(messages)
    except Exception:
        writer.abort(messages)
        raise


def published(written: Written) -> dict[str, list[tuple[str, str]]]:
    return {name: messages for name in NAMES if (messages := written.messages(name))}


def test_a_save_publishes_to_the_stream_that_each_row_names(spark: SparkSession, written: Written) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "if(id % 3 = 0, 'payments', 'orders') as stream", "concat('k.', id) as key", "id as n", "map('h', 'x') as headers"
    )  # fmt: skip
    frame.write.format("headrace").mode("append").option("database", written.url).save()
    found = published(written)
    assert found["payments"] == [(f"k.{n}", f'{{"n":{n}}}') for n in range(0, 100, 3)]
    assert found["orders"] == [(f"k.{n}", f'{{"n":{n}}}') for n in range(100) if n % 3]
    headers = "select distinct headers::text, xmin::text from headrace_streams."
    assert written.fetch(f"{headers}orders") == written.fetch(f"{headers}payments"), "one transaction"
    assert written.staged() == 0


def test_the_option_overrides_the_column(written: Written) -> None:
    save(written, batch(("payments", "a", "1")), stream="orders")
    assert published(written) == {"orders": [("a", "1")]}
    fields = StructType().add("stream", "string").add("key", "string")
    writer = HeadraceWriter({"database": written.url, "stream": "orders"}, fields, False)
    writer.commit([writer.write(iter([batch(("payments", "b", "1")).select(["stream", "key"])]))])
    assert published(written) == {"orders": [("a", "1"), ("b", '{"stream":"payments"}')]}


def test_an_unknown_stream_fails_the_write_and_nothing_is_published(written: Written) -> None:
    rows = batch(("orders", "a", "1"), ("oders", "b", "2"))
    with pytest.raises(UnknownStream, match="There is no stream 'oders'"):
        save(written, batch(("payments", "c", "3")), rows)
    with pytest.raises(InvalidInput, match="1 of 2 rows of the DataFrame have a null `stream`"):
        save(written, batch(("orders", "a", "1"), (None, "b", "2")))
    assert published(written) == {}
    assert written.staged() == 0


def test_a_stream_that_accepts_nothing_fails_the_write_as_a_whole(written: Written) -> None:
    writer = HeadraceWriter({"database": written.url}, SCHEMA, False)
    staged = writer.write(iter([batch(("orders", "a", "1"), ("payments", "b", "2"))]))
    full = "update headrace_internal.streams set full_until = {}, max_storage = 1 where name = 'payments' returning 1"
    written.fetch(full.format("now() + interval '1 hour'"))
    with pytest.raises(StreamFull, match="payments"):
        writer.commit([staged])
    assert published(written) == {}
    written.fetch(full.format("null"))
    writer.commit([staged])
    assert published(written) == {"orders": [("a", "1")], "payments": [("b", "2")]}


def test_an_id_counts_for_all_streams_of_the_write(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    """Its repetition publishes nothing, even if it names other streams, and leaves nothing behind."""
    save(written, batch(("orders", "a", "1")), writeId="w")
    save(written, batch(("orders", "a", "1"), ("payments", "b", "2")), batch(("bad", "c", "3")), writeId="w")
    save(written, batch(("payments", "a", "1")), writeId="w")
    assert published(written) == {"orders": [("a", "1")]}
    assert written.staged() == 0
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        save(written, batch(("payments", "a", "1")), writeId="w")
    assert logged(caplog, "write published nothing", write="saves:w")
    save(
        written, batch(("payments", "d", "4")), writeId="w", stream="orders"
    )  # an id of a write with one stream is another
    assert published(written) == {"orders": [("a", "1"), ("d", "4")]}


def test_rows_that_cant_be_messages_are_set_aside_in_the_same_transaction(written: Written) -> None:
    rows = batch(
        ("orders", "a", "1"), (None, "b", "2"), ("oders", "c", "3"), ("payments", "d..d", "4"), ("orders", "e", "{no"),
        ("payments", None, "6"), ("payments", "g", "7"), ("oders", "h", "8"), ("bad", "i", "9"),
    )  # fmt: skip
    for _ in range(2):
        save(written, rows, badRows="bad", writeId="w")
    found = published(written)
    assert (found["orders"], found["payments"]) == ([("a", "1")], [("g", "7")])
    bad = [(key, json.loads(data)) for key, data in found["bad"]]
    assert ("i", 9) in bad
    aside = {(key, data["row"]["stream"], data["row"]["key"]): data["error"] for key, data in bad if data != 9}
    assert set(aside) == {
        ("unknown", None, "b"), ("unknown", "oders", "c"), ("unknown", "oders", "h"),
        ("payments", "payments", "d..d"), ("orders", "orders", "e"), ("payments", "payments", None),
    }  # fmt: skip
    assert "null `stream`" in aside["unknown", None, "b"]
    assert "There is no stream 'oders'" in aside["unknown", "oders", "c"]
    assert len(written.fetch("select distinct xmin::text from headrace_streams.bad")) == 1
    assert written.fetch("select xmin::text from headrace_streams.bad limit 1") == written.fetch(
        "select xmin::text from headrace_streams.orders"
    )
    assert written.staged() == 0


def test_rows_whose_texts_can_be_no_key_are_set_aside_too(written: Written) -> None:
    """Rows without a key are found before their stream is looked up, and Spark's strings may hold any bytes."""
    texts = pa.array([b"no stream", b"orders", b"a", None, b"\xff", b"1"], pa.binary()).view(pa.string())
    rows = pa.record_batch([texts.slice(0, 2), texts.slice(3, 2), pa.array(["1", "2"])], SCHEMA.names)
    save(written, rows, badRows="bad")
    bad = [(key, json.loads(data)["row"]) for key, data in written.messages("bad")]
    assert bad == [
        ("unknown", {"stream": "no stream", "key": None, "data": "1"}),
        ("orders", {"stream": "orders", "key": "\ufffd", "data": "2", "headers": None}),
    ]


def test_a_row_that_names_its_stream_with_a_nul_is_set_aside_too(written: Written) -> None:
    save(written, batch(("a\0", "b", "1"), ("orders", "c", "2")), badRows="bad")
    [(key, text)] = written.messages("bad")
    row = {"stream": "a\u2400", "key": "b", "data": "1", "headers": None}
    assert (key, json.loads(text)["row"]) == ("unknown", row)
    assert written.keys() == ["c"]


def test_writes_to_two_streams_under_one_id_set_rows_aside_in_the_same_stream(written: Written) -> None:
    for stream in ("orders", "payments", "orders"):
        save(written, batch((None, "a", "1"), (None, "b..b", "2")), stream=stream, badRows="bad", writeId="w" * 200)
    assert [key for key, _ in written.messages("bad")] == ["orders", "payments"]


def test_a_write_has_a_bounded_number_of_streams(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task counts those that don't exist, too, and the commit counts those of all tasks."""
    rows = batch(*[(f"s{n}", "a", "1") for n in range(pieces.MAX_STREAMS + 1)])
    with pytest.raises(InvalidInput, match=f"name more than {pieces.MAX_STREAMS} streams, such as s0, s1, s10"):
        save(written, rows, badRows="bad")
    monkeypatch.setattr(pieces, "MAX_STREAMS", 1)
    save(written, batch(("orders", "a", "1")), batch(("orders", "b", "2"), (None, "c", "3")), badRows="bad")
    assert {name: len(messages) for name, messages in published(written).items()} == {"orders": 2, "bad": 1}
    with pytest.raises(InvalidInput, match="name more than 1 streams, such as orders, payments"):
        save(written, batch(("orders", "d", "4")), batch(("payments", "e", "5")))
    assert written.keys("payments") == []
    assert written.staged() == 0


def test_a_micro_batch_that_runs_again_is_published_once_even_if_its_rows_name_other_streams(
    spark: SparkSession, written: Written, tmp_path: Path
) -> None:
    files = Files(tmp_path)

    def run(streams: str) -> None:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(files.directory))
        query = (
            lines.selectExpr(f"{streams} as stream", "value as key", "'{}' as data")
            .writeStream.format("headrace")
            .option("database", written.url)
            .option("checkpointLocation", str(files.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    files.add(0, "a", "b")
    files.add(1, "c")
    run("if(value = 'b', 'payments', 'orders')")
    files.forget_last_commit()
    files.add(2, "d")
    run("'payments'")
    assert (written.keys("orders"), written.keys("payments")) == (["a", "c"], ["b", "d"])
    assert written.staged() == 0


def test_the_writer_refuses_what_names_no_stream_before_any_task(written: Written) -> None:
    one = {"database": written.url}
    unnamed = StructType().add("key", "string").add("n", "long")
    for options, schema, error, detail in [
        (one, unnamed, ConfigurationError, "or write a DataFrame with a column `stream`"),
        (one, StructType().add("stream", "long").add("key", "string").add("n", "long"), InvalidInput, "of type bigint, which can't name a stream"),
        (one, StructType().add("stream", "string").add("key", "string"), InvalidInput, "has no column for the data"),
        ({**one, "stream": "orders,payments"}, SCHEMA, ConfigurationError, "name the stream of each row in a column `stream`"),
        ({**one, "badRows": "none"}, SCHEMA, UnknownStream, "There is no stream 'none'"),
    ]:  # fmt: skip
        for writer in (HeadraceWriter, HeadraceStreamWriter):
            with pytest.raises(error, match=detail):
                writer(options, schema, False)


def test_a_row_is_published_only_with_the_rights_to_its_stream(written: Written, spark: SparkSession) -> None:
    """Staging takes the rights of the schema's owner, and a grant on one of the streams is not enough."""
    from headrace.model.database_url import read, write

    role = f"limited_{written.url.rpartition('/')[2].split('?')[0]}"[:60]
    written.fetch(f"create role {role} login password 'secret'")
    try:
        limited = Written(write({**read(written.url), "user": role, "password": "secret"}))
        frame = spark.createDataFrame([("orders", "a", "1")], SCHEMA)
        with pytest.raises(PySparkException, match="lacks a privilege"):
            frame.write.format("headrace").mode("append").option("database", limited.url).save()
    finally:
        written.fetch(f"drop role {role}")
    assert published(written) == {}
