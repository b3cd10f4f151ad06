"""What leaves Postgres for a read: hardly more rows and bytes than the query needs, as a proxy before Postgres counts
them."""

from __future__ import annotations

import asyncio
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from io import StringIO
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace import store
from headrace.model.database_url import read as read_url
from headrace.model.database_url import write as write_url
from headrace_spark.source.connection import connect
from headrace_spark.source.options import Options
from headrace_spark.source.reader import FIRST_BYTES, HeadraceReader
from headrace_spark.source.rows import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.asyncio

KEYS = StructType([StructField("key", StringType())])
SEQS = StructType([StructField("seq", LongType())])
COLUMNS = "key, seq, headers::text, created_at, data::text"


class Proxy:
    """A proxy before a server that listens on a Unix socket or a port. It counts the bytes that the server sends."""

    def __init__(self, url: str) -> None:
        target = read_url(url)
        self._target = (target["host"], int(target.get("port", "5432")))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = write_url({**target, "host": "127.0.0.1", "port": str(self._listener.getsockname()[1])})
        self.sent = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._relay, args=(client, self._connected()), daemon=True).start()

    def _connected(self) -> socket.socket:
        host, port = self._target
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    if not data:
                        return
                    if key.fileobj is server:
                        self.sent += len(data)
                    key.data.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    proxy = Proxy(dsn)
    yield proxy
    proxy.close()


def needed(proxy: Proxy, query: str) -> tuple[int, int]:
    """The rows of a query, and the bytes that the server sends for them."""
    connection = connect(proxy.url)
    try:
        before = proxy.sent
        with connection.cursor() as cursor:
            cursor.execute(query)
            rows = cursor.fetch_arrow_table().num_rows
        return rows, proxy.sent - before
    finally:
        connection.close()


def taken(proxy: Proxy, schema: StructType, **given: Any) -> tuple[int, int]:
    """The rows of a read, and the bytes that the server sends to plan it and to read it."""
    before = proxy.sent
    options = {"database": proxy.url, "stream": "orders", **{name: str(value) for name, value in given.items()}}
    reader = HeadraceReader(Options.of(options), schema)
    rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
    return rows, proxy.sent - before


async def test_a_read_takes_hardly_more_than_the_query_needs(dsn: str, database: store.Database, proxy: Proxy) -> None:
    await store.create_stream(database, "orders")
    sql = """select headrace.publish('orders', 'k.' || n % 50, to_json(repeat('x', 2000) || n)) from generate_series($1::int, $2) as n"""
    await database.fetch(sql, 1, 5000)
    await asyncio.to_thread(needed, proxy, "select 1")  # the driver reads the types of a database once
    time = await database.fetchval("select clock_timestamp()")
    await database.fetch(sql, 5001, 6000)
    reads = [
        (SCHEMA, {"start": 5001}, f"select {COLUMNS} from headrace_streams.orders where seq > 5000"),
        (SCHEMA, {"start": time.isoformat()}, f"select {COLUMNS} from headrace_streams.orders where seq > 5000"),
        (SCHEMA, {"filter": "k.7"}, f"select {COLUMNS} from headrace_streams.orders where key = 'k.7'"),
        (SCHEMA, {"limit": 100}, f"select {COLUMNS} from headrace_streams.orders order by seq limit 100"),
        (SCHEMA, {"limit": 10, "filter": "k.7"}, f"select {COLUMNS} from headrace_streams.orders where key = 'k.7' order by seq limit 10"),
        (KEYS, {}, "select key from headrace_streams.orders"),
        (SEQS, {}, "select seq from headrace_streams.orders"),
    ]  # fmt: skip
    for schema, given, query in reads:
        rows, size = await asyncio.to_thread(needed, proxy, query)
        found, sent = await asyncio.to_thread(taken, proxy, schema, **given)
        assert found == rows, given
        assert sent <= 1.1 * size + 10_000, f"{given} {schema.names}: {sent} bytes for {size}"


async def test_the_first_rows_of_a_task_take_little_and_the_others_come_in_larger_batches(
    dsn: str, database: store.Database, proxy: Proxy
) -> None:
    """Spark ends a task that has the rows which `take(1)` needs."""
    await store.create_stream(database, "orders")
    sql = "select headrace.publish('orders', 'k', to_json(repeat('x', 2000) || n)) from generate_series(1, 10000) as n"
    await database.fetch(sql)
    reader = HeadraceReader(Options.of({"database": proxy.url, "stream": "orders", "partitions": "1"}), SCHEMA)

    def read() -> tuple[int, list[int]]:
        batches = reader.read(reader.partitions()[0])
        before = proxy.sent
        sizes = [next(iter(batches)).nbytes]
        return proxy.sent - before, sizes + [batch.nbytes for batch in batches]

    sent, sizes = await asyncio.to_thread(read)
    assert sizes[0] < 2 * FIRST_BYTES
    assert sent < 4_000_000
    assert sum(sizes) > 20_000_000
    assert len(sizes) < 15


async def test_a_count_takes_no_column_of_any_message(dsn: str, database: store.Database, proxy: Proxy) -> None:
    """Also after a filter and a limit, and over several streams."""
    sql = "select headrace.publish($1, 'k.' || n % 50, to_json(repeat('x', 2000) || n)) from generate_series(1, 3000) as n"
    for stream in ("orders", "payments"):
        await store.create_stream(database, stream)
        await database.fetch(sql, stream)
    await asyncio.to_thread(needed, proxy, "select 1")  # the driver reads the types of a database once
    both = {"stream": "orders,payments"}
    for given, rows in (({}, 3000), ({"filter": "k.7"}, 60), (both, 6000), ({**both, "limit": 3500}, 3500)):
        found, sent = await asyncio.to_thread(taken, proxy, StructType(), **given)
        assert found == rows, given
        assert sent <= 10_000, f"{given}: {sent} bytes"


async def test_spark_counts_rows_without_columns(spark: SparkSession, dsn: str, database: store.Database) -> None:
    await store.create_stream(database, "orders")
    await database.fetch("select headrace.publish('orders', 'k', to_json(n)) from generate_series(1, 3000) as n")
    frame = spark.read.format("headrace").options(database=dsn, stream="orders").schema(StructType()).load()
    assert await asyncio.to_thread(frame.count) == 3000
    assert await asyncio.to_thread(frame.limit(5).count) == 5


@pytest.mark.parametrize(
    ("error", "silent"), [(ConnectionResetError, True), (BrokenPipeError, True), (ValueError, False)]
)
async def test_a_task_of_which_spark_wants_no_more_ends_in_silence(
    dsn: str, database: store.Database, monkeypatch: pytest.MonkeyPatch, error: type[Exception], silent: bool
) -> None:
    """PySpark fails to write, closes the reader, ends the process and prints a traceback to `sys.stderr`."""
    await store.create_stream(database, "orders")
    await database.fetch("select headrace.publish('orders', 'k', to_json(n)) from generate_series(1, 3000) as n")
    printed = StringIO()
    monkeypatch.setattr(sys, "stderr", printed)

    def task() -> None:
        reader = HeadraceReader(Options.of({"database": dsn, "stream": "orders"}), SCHEMA)
        batches = reader.read(reader.partitions()[0])
        try:
            next(iter(batches))
            raise error
        finally:
            batches.close()  # type: ignore[attr-defined]

    with pytest.raises(error):
        await asyncio.to_thread(task)
    print("a traceback", file=sys.stderr)
    assert bool(printed.getvalue()) != silent


@pytest.mark.long
async def test_take_prints_no_traceback(dsn: str, database: store.Database) -> None:
    await store.create_stream(database, "orders")
    sql = "select headrace.publish('orders', 'k', to_json(repeat('x', 500) || n)) from generate_series(1, 50000) as n"
    await database.fetch(sql)
    program = """
        import sys
        from headrace_spark.session import SparkSettings, session, stop
        spark = session(SparkSettings(master="local[2]"))
        frame = spark.read.format("headrace").options(database=sys.argv[1], stream="orders").load()
        print(len(frame.take(1)), len(frame.limit(5).collect()))
        stop()
    """
    command = [sys.executable, "-c", dedent(program), dsn]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["1", "5"]
    assert "Error" not in ended.stderr, ended.stderr


async def test_a_limit_counts_the_messages_of_all_streams(dsn: str, database: store.Database, proxy: Proxy) -> None:
    for stream in ("orders", "payments"):
        await store.create_stream(database, stream)
        await database.fetch("select headrace.publish($1, 'k', to_json(n)) from generate_series(1, 8) as n", stream)
    schema = StructType([*SCHEMA, StructField("stream", StringType())])
    for limit, rows in ((3, 3), (10, 10), (99, 16)):
        found, _ = await asyncio.to_thread(taken, proxy, schema, stream="orders,payments", limit=limit)
        assert found == rows
