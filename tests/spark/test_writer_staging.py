"""One commit publishes what tasks stage, despite retried attempts, lost answers, and invalid rows. Without Spark."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from adbc_driver_manager import AdbcStatusCode, InternalError
from pyspark.sql.types import StructType

from headrace.model.errors import (
    ConfigurationError,
    InvalidData,
    InvalidInput,
    InvalidKey,
    SchemaError,
    StagedRowsGone,
    StoreUnavailable,
    StreamFull,
    UnknownStream,
)
from headrace_spark.frames.pieces import chunks
from headrace_spark.source import row_checks, staging
from headrace_spark.source.connection import connect, fetch
from headrace_spark.source.staging import Part, Write
from headrace_spark.source.writer import HeadraceStreamWriter, HeadraceWriter
from tests.spark.written import Written
from tests.support.logs import logged

SCHEMA = StructType().add("key", "string").add("n", "long")


@pytest.fixture
def written(dsn: str) -> Written:
    written = Written(dsn)
    written.create("orders")
    return written


def rows(*keys: str | None, **columns: Any) -> pa.RecordBatch:
    """A batch as Spark passes it. Its only column is a number unless other columns are given."""
    return pa.record_batch({"key": pa.array(keys, pa.string()), **(columns or {"n": list(range(len(keys)))})})


def any_bytes(*texts: bytes) -> pa.Array:
    """Strings as Spark has them, of which not all are UTF-8."""
    return pa.array(texts, pa.binary()).view(pa.string())


def with_key(key: bytes) -> pa.RecordBatch:
    return pa.record_batch({"key": any_bytes(key), "data": pa.array(["1"])})


def a_write(written: Written, **which: Any) -> Write:
    return Write(**{"place": written.place, "stream": "orders", "id": "w", **which})


def test_rows_are_published_by_the_commit_in_the_order_of_partitions(written: Written) -> None:
    write = a_write(written)
    second = staging.stage(write, 1, [rows("c"), rows("a", "c")])
    first = staging.stage(write, 0, [rows("b")])
    assert written.messages() == []
    assert staging.commit(write, [second, first]) == 4
    assert written.messages() == [("b", '{"n":0}'), ("c", '{"n":0}'), ("a", '{"n":0}'), ("c", '{"n":1}')]
    assert written.staged() == 0


def test_attempts_that_failed_or_ran_twice_are_not_published(written: Written) -> None:
    write = a_write(written)

    def breaks() -> Iterator[pa.RecordBatch]:
        yield rows("a", "b", "c")
        raise RuntimeError("the task has died")

    with pytest.raises(RuntimeError, match="has died"):
        staging.stage(write, 0, breaks(), chunk_bytes=1)  # the third row waits for what would be sent with it
    attempts = [staging.stage(write, 0, [rows("a", "b")]) for _ in range(2)]
    assert written.staged() == 6
    assert staging.commit(write, attempts[1:]) == 2
    assert staging.commit(write, attempts[:1]) == 0
    assert written.keys() == ["a", "b"]
    assert written.staged() == 0


def test_batches_are_sent_as_they_come_and_large_ones_in_pieces(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task never holds all of its rows in memory."""
    sent: list[int] = []
    ingest = staging._ingest
    monkeypatch.setattr(staging, "_ingest", lambda *args: (sent.append(args[-1].num_rows), ingest(*args)))
    seen: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(6):
            yield rows(*[f"k{n}"] * 500, data=["1"] * 500)
            seen.append(written.staged())

    part = staging.stage(a_write(written), 0, batches(), chunk_bytes=10_000)
    # A small batch waits for the next, to be sent with it if both are small enough. One more may be under way.
    assert all((n - 1) * 500 <= staged <= n * 500 for n, staged in enumerate(seen))
    assert len(sent) == 6
    sent.clear()
    batch = rows(*["big"] * 100, data=['"' + "x" * 998 + '"'] * 100)
    large = staging.stage(a_write(written), 1, [batch], chunk_bytes=10_000)
    assert max(sent) <= 11
    assert staging.commit(a_write(written), [part, large]) == 3100
    assert written.keys() == [f"k{n}" for n in range(6) for _ in range(500)] + ["big"] * 100


def messages(key: str = "a", data: str = "1", headers: str | None = None) -> pa.RecordBatch:
    """A slice of a batch, as pieces are, with a message of which nothing is unusual beside this one."""
    columns = {"key": ["*", "a", key], "data": ["\\u0000", "1", data], "headers": ["[]", None, headers]}
    return pa.record_batch({name: pa.array(values, pa.string()) for name, values in columns.items()}).slice(1)


def test_rows_that_a_task_finds_usual_are_messages(written: Written) -> None:
    """They are not checked again by the database."""
    draw = random.Random(1)
    signs = [*(chr(code) for code in range(1, 128)), "é", "\u00a0", "\u3000", "\ud7ff", "\U0001f600"]
    keys = [*signs, *(f"{sign}.a" for sign in signs), *(f"a.{sign}" for sign in signs), *(f"a{sign}" for sign in signs)]
    keys += ["", ".", "a.", ".a", "a..b", "a.b.c", "a-a", "k" * 1024, "k" * 1025, "é" * 513]
    keys += ["".join(draw.choices("ab.*>- \n", k=draw.randint(1, 8))) for _ in range(500)]
    usual = {key for key in keys if row_checks.are_usual(messages(key))}
    connection = connect(written.place)
    try:
        for key in usual:  # raises for a key that is not valid
            fetch(connection, written.place, "select headrace_streams.is_message($1, '1', null)", key)
    finally:
        connection.close()
    assert {"a", "A", "a.b.c", "a-a", "!", "~", "k" * 1024} <= usual
    assert not usual & {"*", ">", "a.*", ">.a", "", ".", "a.", "a..b", " ", "a\n", "\x7f", "é", "k" * 1025}


@pytest.mark.parametrize(
    ("data", "usual"),
    [
        ("1", True),
        ('"\\\\"', True),
        ('"\\u0001"', True),
        ('"\\u0000"', False),
        ('"\\\\u0000"', False),  # it has no NUL, which is left to the database
        ('"' + "x" * 699_998 + '"', True),
        ('"' + "x" * 699_999 + '"', False),
    ],
)
def test_data_that_a_task_finds_usual(data: str, usual: bool) -> None:
    assert row_checks.are_usual(messages(data=data)) is usual
    assert not row_checks.are_usual(messages(headers="{}"))


def test_unusual_rows_are_checked_by_the_database(written: Written) -> None:
    write = a_write(written)
    part = staging.stage(write, 0, [rows("é", data=['"\\\\u0000"'])])
    assert staging.commit(write, [part]) == 1
    for bad in (rows("a..b", data=["1"]), rows("a", data=['"\\u0000"'])):
        with pytest.raises(InvalidInput, match=r"^The row with the key 'a(\.\.b)?' can't be published"):
            staging.stage(a_write(written, id="bad"), 0, [rows("a", data=["1"]), bad], chunk_bytes=1)
    with pytest.raises(InvalidData, match="its data, a string, is not JSON text"):
        staging.stage(a_write(written, id="bad"), 0, [rows("a", data=["{"])])


def test_what_was_committed_before_is_not_staged_again_and_read_to_the_end(written: Written) -> None:
    write = a_write(written)
    assert staging.commit(write, [staging.stage(write, 0, [rows("a")])]) == 1
    batches = iter([rows("a"), rows("b")])
    part = staging.stage(write, 0, batches)
    assert next(batches, None) is None
    assert part.rows == 2
    assert written.staged() == 0
    assert staging.commit(write, [part]) == 0
    assert written.keys() == ["a"]


def test_a_task_without_rows_leaves_nothing(written: Written) -> None:
    write = a_write(written)
    part = staging.stage(write, 0, [rows()])
    assert part.rows == 0
    assert staging.commit(write, [part]) == 0
    assert staging.commit(write, []) == 0
    assert written.writes() == []


def test_after_a_crash_of_the_server_the_batch_is_written_again(written: Written) -> None:
    """A crash empties an unlogged table."""
    write = a_write(written, streaming=True)
    lost = staging.stage(write, 0, [rows("a", "b")])
    ((table,),) = written.fetch("select staging from headrace_internal.writes")
    written.fetch(f"truncate {table}")
    late = staging.stage(write, 1, [rows("c")])
    with pytest.raises(StagedRowsGone, match=r"Of the 2 rows .* are there, .* write them again\.$"):
        staging.commit(write, [lost, late])
    assert written.messages() == []
    staging.abort(write)
    again = [staging.stage(write, n, [rows(key)]) for n, key in enumerate("abc")]
    assert staging.commit(write, again) == 3
    assert written.keys() == ["a", "b", "c"]


def test_a_commit_is_retried_when_its_connection_breaks(written: Written, dsn: str) -> None:
    write = a_write(written)
    part = staging.stage(write, 0, [rows("a")])
    holder = staging.connect(written.place, autocommit=False)
    try:
        staging.fetch(holder, dsn, "select write_id from headrace_internal.writes for update")
        counts: list[int] = []
        committing = threading.Thread(
            target=lambda: counts.append(staging.commit(write, [part], retry_delays=(0.0,) * 5))
        )
        committing.start()
        killed: list[Any] = []
        while not killed:
            killed = written.fetch(
                """select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()
                   and wait_event_type = 'Lock' and query like '%commit_write%' and pid <> pg_backend_pid()"""
            )
    finally:
        holder.close()
    committing.join(60)
    assert counts == [1]
    assert written.keys() == ["a"]


class Failing:
    """A connection of the driver whose end fails after it is closed."""

    def __init__(self, inner: Any, error: str) -> None:
        self._inner = inner
        self._error = error

    def close(self) -> None:
        self._inner.close()
        raise InternalError(f"INTERNAL: [libpq] {self._error}", status_code=AdbcStatusCode.INTERNAL)


def test_a_connection_that_the_driver_has_not_counted_is_closed_all_the_same(written: Written) -> None:
    """The driver counts the connections of several threads without a lock, and misses one now and then."""
    uncounted, broken = staging.connect(written.place), staging.connect(written.place)
    uncounted._conn = Failing(uncounted._conn, "Open connection count underflowed")
    broken._conn = Failing(broken._conn, "something else")
    uncounted.close()
    uncounted.close()  # which does nothing
    with pytest.raises(InternalError, match="something else"):
        broken.close()
    broken._closed = True  # so that it does not fail once more when it is collected


def test_a_commit_with_a_lost_answer_is_retried_and_published_once(
    written: Written, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = a_write(written)
    part = staging.stage(write, 0, [rows("a")])
    commit, lost = staging._commit, []

    def loses(*args: Any) -> int:
        count = commit(*args)
        if not lost:
            lost.append(count)
            raise StoreUnavailable("The connection broke.")
        return count

    monkeypatch.setattr(staging, "_commit", loses)
    with caplog.at_level(logging.INFO, "headrace.spark"):
        assert staging.commit(write, [part], retry_delays=(0.0,)) == 0
    assert lost == [1]
    [record] = logged(caplog, "commit failed", stream="orders", seconds=0.0)
    assert str(record.error) == "The connection broke."  # type: ignore[attr-defined]
    staging.abort(write)
    assert written.keys() == ["a"]


def test_patience_with_the_database_ends(
    written: Written, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = a_write(written)
    part = staging.stage(write, 0, [rows("a")])
    gone = Write(place=staging.Place("postgresql://127.0.0.1:1/none"), stream="orders", id="w")
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        staging.commit(gone, [part], retry_delays=(0.0, 0.0))
    assert len(logged(caplog, "commit failed", write="w")) == 2
    staging.abort(gone)
    assert logged(caplog, "staged rows not deleted", stream="orders", write="w")


def test_a_full_stream_is_reported_at_once(written: Written) -> None:
    write = a_write(written)
    part = staging.stage(write, 0, [rows("a")])
    written.fetch(
        "update headrace_internal.streams set full_until = now() + interval '1 hour', max_storage = 1 returning 1"
    )
    with pytest.raises(StreamFull):
        staging.commit(write, [part])
    with pytest.raises(StreamFull):
        staging.stage(a_write(written, id="other"), 0, [rows("a")])


@pytest.mark.parametrize(
    ("bad", "error", "detail"),
    [
        (rows("ok", "a..b"), InvalidKey, r"^The row with the key 'a\.\.b' can't be published: a key has 1 to 1024 bytes"),
        (rows("ok", "a b"), InvalidKey, r"^The row with the key 'a b' .* have no blanks or control characters"),
        (rows("ok", "x" * 2000), InvalidKey, r"^The row with the key 'x{80}…' can't"),
        (rows("ok", "bad", data=["1", '{"a":']), InvalidData, r"key 'bad' .* its data, a string, is not JSON text"),
        (rows("ok", "bad", data=["1", '"\\u0000"']), InvalidData, r"key 'bad' .* NUL"),
        (rows("ok", "bad", data=any_bytes(b"1", b'"\xff"')), InvalidData, r"key 'bad' .* its data, a string, is no text in UTF-8 .*0xff"),
        (rows("ok", "bad", data=["1", "1"], headers=any_bytes(b"{}", b'{"\xc3":1}')), InvalidData, r"key 'bad' .* no text in UTF-8"),
        (with_key(b"k\xe4"), InvalidData, r"key 'k\ufffd' .* its key, a string, is no text in UTF-8"),
        (with_key(b"k\0"), InvalidData, r"key 'k\\x00' .* NUL"),
        (rows("ok", "bad", data=["1", "1"], headers=[None, "[]"]), InvalidData, r"key 'bad' .* not a JSON object"),
        (rows("ok", "bad", data=["1", "1"], headers=[None, "{"]), InvalidData, r"key 'bad' .* its headers, a string"),
        (rows("ok", "bad", data=["1", "[" * 50000]), InvalidInput, r"key 'bad' .* stack depth limit exceeded"),
        (rows("ok", None), InvalidInput, r"have a null `key`"),
        (rows("ok", "bad", data=["1", None]), InvalidInput, r"have a null `data`"),
    ],
)  # fmt: skip
def test_a_row_that_cant_be_published_is_reported_by_its_key(
    written: Written, bad: pa.RecordBatch, error: type[Exception], detail: str
) -> None:
    with pytest.raises(error, match=detail):
        staging.stage(a_write(written), 0, [rows("fine"), bad])


def test_a_task_of_an_abandoned_write_raises(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    write = a_write(written)
    ingest, staged = staging._ingest, threading.Semaphore(0)
    monkeypatch.setattr(staging, "_ingest", lambda *args: (ingest(*args), staged.release()))

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows("a")
        yield rows("b")
        yield rows("c")
        for _ in range(2):  # a table that rows are sent to is left to the janitor
            assert staged.acquire(timeout=30)
        staging.abort(write)
        yield rows("d")

    with pytest.raises(StoreUnavailable, match="are gone, since it was committed or aborted meanwhile"):
        staging.stage(write, 0, batches(), chunk_bytes=1)


def test_a_connection_that_breaks_between_two_pieces_is_an_outage(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest, staged = staging._ingest, threading.Semaphore(0)
    monkeypatch.setattr(staging, "_ingest", lambda *args: (ingest(*args), staged.release()))

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows("a")
        yield rows("b")
        assert staged.acquire(timeout=30)
        written.fetch(
            "select pg_terminate_backend(pid)::text from pg_stat_activity where application_name = 'headrace spark'"
            " and datname = current_database() and pid <> pg_backend_pid()"
        )
        yield rows("c")

    with pytest.raises(StoreUnavailable):
        staging.stage(a_write(written), 0, batches(), chunk_bytes=1)


def test_the_writer_refuses_invalid_writes_before_any_task(written: Written, empty_dsn: str) -> None:
    good = {"database": written.url, "stream": "orders"}
    for options, schema, overwrite, error, detail in [
        (good, SCHEMA, True, ConfigurationError, r"Write with \.mode\('append'\)"),
        (good, StructType().add("id", "long"), False, InvalidInput, "no string column `key`"),
        ({**good, "stream": "oders"}, SCHEMA, False, UnknownStream, "There is no stream 'oders'"),
        ({**good, "writeid": ""}, SCHEMA, False, ConfigurationError, "must have 1 to 200 bytes"),
        ({**good, "writeids": "x"}, SCHEMA, False, ConfigurationError, "Did you mean writeId"),
        ({**good, "database": empty_dsn}, SCHEMA, False, SchemaError, "Run `headrace migrate`"),
        ({**good, "database": "postgresql://127.0.0.1:1/no"}, SCHEMA, False, StoreUnavailable, "can't be reached"),
    ]:  # fmt: skip
        with pytest.raises(error, match=detail):
            HeadraceWriter(options, schema, overwrite)
    with pytest.raises(ConfigurationError, match=r"\.outputMode\('append'\)"):
        HeadraceStreamWriter(good, SCHEMA, True)
    with pytest.raises(ConfigurationError, match="writeId is not supported by a streaming query"):
        HeadraceStreamWriter({**good, "writeId": "x"}, SCHEMA, False)


def test_writers_without_an_id_are_different_writes(written: Written) -> None:
    good = {"database": written.url, "stream": "orders"}
    for _ in range(2):
        writer = HeadraceWriter(good, SCHEMA, False)
        writer.commit([writer.write(iter([rows("a")])), None])
    assert written.keys() == ["a", "a"]
    writer = HeadraceWriter(good, SCHEMA, False)
    writer.abort([writer.write(iter([rows("b")])), None])
    assert written.staged() == 0


def test_a_part_is_one_of_each_stream_for_the_database() -> None:
    part = Part(partition=1, attempt="x", streams={"orders": 2, "refunds": 3})
    assert part.rows == 5
    assert part.in_database() == [
        {"partition": 1, "attempt": "x", "stream": "orders", "rows": 2},
        {"partition": 1, "attempt": "x", "stream": "refunds", "rows": 3},
    ]


def test_small_batches_are_sent_together_and_large_ones_in_pieces() -> None:
    small = [rows("a"), rows("b", "c"), rows(), rows("d")]
    (joined,) = chunks(iter(small), 1_000_000)
    assert joined.column("key").to_pylist() == ["a", "b", "c", "d"]
    assert joined.schema == small[0].schema
    pieces = list(chunks(iter([rows(*"abcdefgh"), rows("i")]), 50))
    assert [key for piece in pieces for key in piece.column("key").to_pylist()] == list("abcdefghi")
    assert len(pieces) > 2
    assert list(chunks(iter([]), 50)) == []
