"""Programs for the driver of a cluster, each in a separate process: they print what they found as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.spark.cluster import Cluster, LocalCluster
from tests.spark.processes import PATIENCE

ROOT = Path(__file__).parents[2]

SERVICE = '''
import os
import signal
import subprocess

from headrace import App
from headrace_spark import each_key, spark_consumer
from prices import in_cents

app = App(streams=["orders"])


def die_once(mark, executor=False):
    """Kill this Python worker, or the executor above it, unless that was done before."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    victim = os.getpid()
    if executor:  # the parent of the daemon that has forked this worker
        victim = int(subprocess.check_output(["ps", "-o", "ppid=", "-p", str(os.getppid())]))
    os.kill(victim, signal.SIGKILL)


class Deadly:
    def __init__(self, mark):
        self.mark = mark

    def __call__(self, batches):
        for batch in batches:
            yield batch
        die_once(self.mark, executor=True)


def steps(key, rows):
    """Runs on executors, which import this module and those that it imports."""
    total = 0
    for row in rows.itertuples():
        die_once(row.data["mark"])
        total += in_cents(row.data["n"])
        yield {"key": key, "seq": row.seq, "total": total}


@spark_consumer(app, "orders", schema="n bigint, mark string", publishes="sums", max_wait="0.2s")
def sums(df):
    return each_key(df, steps, "key string, seq bigint, total bigint").orderBy("key", "seq")
'''


def write_service(directory: Path) -> None:
    """Write a service of several modules, one of them a package with a data file, beside the driver."""
    (directory / "service.py").write_text(SERVICE)
    (directory / "prices").mkdir()
    (directory / "prices/__init__.py").write_text(
        "from pathlib import Path\n\nCENTS = int((Path(__file__).parent / 'cents.txt').read_text())\n\n\ndef in_cents(n):\n    return n * CENTS\n"
    )
    (directory / "prices/cents.txt").write_text("100\n")


def write_replaying(directory: Path) -> None:
    """Write the module `replaying`, and one that it imports, beside the driver."""
    (directory / "replaying.py").write_text(REPLAYING)
    (directory / "names.py").write_text("def rename(key):\n    return key.replace('orders', 'renamed')\n")


def drive(cluster: Cluster | LocalCluster, program: str, directory: Path, *arguments: str, **variables: str) -> Any:
    """Run a program of this module as a driver. Returns what it printed."""
    ended = start(cluster, program, directory, *arguments, **variables)
    out, errors = ended.communicate(timeout=PATIENCE * 2)
    assert ended.returncode == 0, (out, errors)
    return json.loads(out.splitlines()[-1])


def fails(cluster: Cluster | LocalCluster, directory: Path, **variables: str) -> tuple[int, str]:
    """Run `headrace spark check`. Returns its exit code, and what it says, but for a warning of a slow machine."""
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "spark", "check", "--timeout", str(PATIENCE)], cwd=directory, stdin=subprocess.DEVNULL,
        env=cluster.variables(PYTHONPATH=os.pathsep.join(sys.path), **variables), capture_output=True, text=True,
        timeout=PATIENCE * 2, check=False,
    )  # fmt: skip
    said = [line for line in ended.stderr.splitlines() if not line.startswith("waiting for executors")]
    return ended.returncode, "\n".join(said)


def start(
    cluster: Cluster | LocalCluster,
    program: str,
    directory: Path,
    *arguments: str,
    output: Any = subprocess.PIPE,
    **variables: str,
) -> subprocess.Popen[str]:
    """Start a program of this module as a driver."""
    code = f"import sys; sys.path[1:1] = {[str(ROOT), *sys.path]!r}; from tests.spark.on_cluster import {program}; {program}(*sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=directory, env=cluster.variables(**variables),
        stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True,
    )  # fmt: skip


def _work_off(app: Any, dsn: str) -> None:
    """Run an app until no message is left."""
    import asyncio

    from tests.runtime.running import running

    async def run() -> None:
        app.dsn = dsn
        async with running(app, within=PATIENCE):
            await app.idle()

    asyncio.run(run())


def everyday(dsn: str, place: str) -> None:
    """Check the cluster, read a stream, write one while an executor is killed, and run a handler while a worker is."""

    import msgspec
    import service

    from headrace_spark import session, stop
    from headrace_spark.session.check import check

    report = msgspec.to_builtins(check(timeout=PATIENCE), enc_hook=str)
    spark = session()
    orders = spark.read.format("headrace").options(database=dsn, stream="orders", partitions="2").load()
    seqs = sorted(row.seq for row in orders.select("seq").collect())
    copies = spark.readStream.format("headrace").options(database=dsn, stream="orders", partitions="2")
    rows = (
        copies.load().select("key", "data").mapInArrow(service.Deadly(f"{place}/executor"), "key string, data string")
    )
    query = rows.writeStream.format("headrace").options(database=dsn, stream="copies")
    query.option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True).start().awaitTermination()

    _work_off(service.app, dsn)
    stop()
    print(json.dumps({"report": report, "seqs": seqs}))


def staging(dsn: str) -> None:
    """Work off a stream with a handler of `service`, and report the ways that its results have taken."""

    import service

    from headrace_spark import session, stop
    from headrace_spark.handlers import results

    session()
    ways: list[str] = []
    staged = results.Results._staged

    def noted(self: Any, plan: Any) -> Any:
        found = staged(self, plan)
        ways.append("staged")
        return found

    results.COLLECTED_ROWS = 3
    results.Results._staged = noted  # type: ignore[method-assign]

    _work_off(service.app, dsn)
    stop()
    print(json.dumps({"ways": ways}))


def speculating(dsn: str, place: str, times: str) -> None:
    """Write a stream several times. Each time a task waits until Spark has started it a second time, beside itself."""
    from headrace_spark import session, stop

    spark = session()
    for turn in range(int(times)):
        numbers = spark.range(100 * turn, 100 * (turn + 1), 1, 4)
        rows = numbers.mapInArrow(_until_speculated(f"{place}/{turn}", PATIENCE), "key string, data string")
        rows.write.format("headrace").mode("append").options(database=dsn, stream="orders").save()
    stop()
    print(json.dumps({}))


def _until_speculated(mark: str, patience: float) -> Any:
    def work(batches: Any) -> Any:  # its module is not on the executors, so it is sent by value
        import time
        from pathlib import Path

        import pyarrow as pa
        from pyspark import TaskContext

        task, second = TaskContext.get(), Path(mark)
        if task.partitionId() == 0 and task.attemptNumber():
            second.touch()
        end = time.monotonic() + patience
        for batch in batches:
            while task.partitionId() == 0 and not second.exists():
                assert time.monotonic() < end, "Spark has not started the task again"
                time.sleep(0.01)
            numbers = batch.column(0).to_pylist()
            yield pa.RecordBatch.from_pylist([{"key": f"orders.{number}", "data": str(number)} for number in numbers])

    return work


def pipelines(dsn: str, place: str) -> None:
    """Run every pipeline, in a session that the program has made itself."""
    import replaying
    from pyspark.sql import SparkSession

    from headrace_spark import aggregate, archive, backfill, replay
    from headrace_spark.session import java, settings

    made = settings.read().settings
    os.environ.update(PYSPARK_PYTHON=str(made.python), JAVA_HOME=str(java.find().home))
    spark = SparkSession.builder.master(str(made.master)).config(map={**made.conf}).getOrCreate()
    reports = [
        archive("orders", f"{place}/archive", database=dsn, max_rows=15),
        archive("orders", f"{place}/archive", database=dsn),
        replay(
            replaying.function, "replayed", stream="orders", checkpoint=f"{place}/replay", database=dsn, max_rows=15
        ),
        replay("replaying:function", "replayed", path=f"{place}/archive", checkpoint=f"{place}/again", database=dsn),
        backfill("headrace_streams.orders", "filled", database=dsn, partitions=3),
        aggregate(
            "orders",
            "counted",
            window="1h",
            aggregates={"n": "count(*)"},
            checkpoint=f"{place}/aggregate",
            database=dsn,
        ),
    ]
    spark.stop()
    print(json.dumps([(report.pipeline, report.rows) for report in reports]))


def over_connect(dsn: str) -> None:
    """Read and write a stream over Spark Connect, with a function that executors import."""
    import msgspec
    import replaying

    from headrace_spark import session, stop
    from headrace_spark.session.check import check

    report = msgspec.to_builtins(check(timeout=PATIENCE), enc_hook=str)
    orders = session().read.format("headrace").options(database=dsn, stream="orders").load()
    copies = replaying.function(orders).select("key", "data").write.format("headrace").mode("append")
    copies.options(database=dsn, stream="replayed").save()
    stop()
    print(json.dumps(report))


REPLAYING = '''
import names


def renamed(batches):
    """Runs on executors."""
    import pyarrow as pa

    for batch in batches:
        rows = batch.to_pylist()
        yield pa.RecordBatch.from_pylist([{**row, "key": names.rename(row["key"])} for row in rows], batch.schema)


def function(messages):
    found = messages.select("key", "seq", "data")
    return found.mapInArrow(renamed, found.schema)
'''


def confide(dsn: str, wrong: str, place: str) -> None:
    """Do everything with a database that has a password, and save what Spark shows of it."""
    import logging
    import traceback

    from headrace_spark import aggregate, archive, backfill, session, stop

    logging.basicConfig(level=logging.DEBUG)
    logging.getLogger("py4j").setLevel(logging.INFO)
    spark = session()
    options = {"database": dsn, "stream": "orders"}
    orders = spark.read.format("headrace").options(**options).load()
    orders.explain(True)
    orders.where("key like 'orders.%'").cache().count()
    spark.sql(f"create temporary view orders using headrace options (database '{dsn}', stream 'orders')")
    pairs = "host=127.0.0.1 " + " ".join(f"{name}='{value}'" for name, value in _pairs_of(dsn).items())
    spark.read.format("headrace").options(database=pairs, stream="orders").load().explain(True)
    spark.sql("explain extended select * from orders where seq > 1").show(truncate=False)
    for text in (f"database '{dsn}'", f'database "{pairs}"'):
        spark.sql(f"explain extended create temporary view v using headrace options ({text}, stream 'orders')").show(
            truncate=False
        )
    spark.sql("select key, data from orders").write.format("headrace").mode("append").options(
        database=dsn, stream="copies", writeId="one"
    ).save()
    query = spark.readStream.format("headrace").options(**options).load().select("key", "data")
    query = (
        query.writeStream.format("headrace")
        .options(database=dsn, stream="copies")
        .option("checkpointLocation", f"{place}/checkpoint")
    )
    started = query.trigger(availableNow=True).start()
    started.awaitTermination()
    started.explain(True)
    print(started.lastProgress)
    archive("orders", f"{place}/archive", database=dsn)
    aggregate(
        "orders", "copies", window="1h", aggregates={"n": "count(*)"}, checkpoint=f"{place}/aggregate", database=dsn
    )
    backfill("headrace_streams.orders", "copies", database=dsn, source=dsn)

    def failing(batches: Any) -> Any:
        for _ in batches:
            raise ValueError("no good")
        yield from ()

    for attempt in (
        lambda: spark.read.format("headrace").options(database=wrong, stream="orders").load().count(),
        lambda: orders.mapInArrow(failing, "x string").count(),
        lambda: (
            orders.select("key")
            .withColumn("data", sql_lit("no json"))
            .write.format("headrace")
            .mode("append")
            .options(**options)
            .save()
        ),
        lambda: archive("orders", f"{place}/wrong", database=wrong),
        lambda: spark.read.format("headrace").options(database=f"{dsn}&nosuch=%zz", stream="orders").load().count(),
    ):
        try:
            attempt()
            raise AssertionError("it did not fail")
        except AssertionError:
            raise
        except Exception:
            traceback.print_exc()
    _save_pages(spark, Path(place) / "pages")
    stop()
    print(json.dumps({}))


def _pairs_of(dsn: str) -> dict[str, str]:
    """The same database in libpq's other form."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(dsn)
    return {
        "port": str(parts.port), "user": str(parts.username), "password": unquote(str(parts.password)),
        "dbname": parts.path.lstrip("/"),
    }  # fmt: skip


def sql_lit(text: str) -> Any:
    from pyspark.sql import functions as sql

    return sql.lit(text)


def _save_pages(spark: Any, place: Path) -> None:
    """Save the application's page, part by part, and what its REST API answers."""
    import urllib.request

    context = spark.sparkContext
    place.mkdir()
    api = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    names = [f"{api}/{name}" for name in ("environment", "jobs", "stages?details=true", "allexecutors", "storage/rdd")]
    names.append(f"{api}/sql?details=true&planDescription=true&offset=0&length=1000")
    names += [
        f"{context.uiWebUrl}/{name}/" for name in ("jobs", "stages", "storage", "environment", "executors", "SQL")
    ]
    names += [f"{context.uiWebUrl}/StreamingQuery/", f"{context.uiWebUrl}/SQL/execution/?id=0"]
    for number, name in enumerate(names):
        with urllib.request.urlopen(name) as answer:
            (place / str(number)).write_bytes(answer.read())


LABOUR = '''
import time

from headrace import App
from headrace_spark import each_key, spark_consumer

app = App(streams=["orders"])


def slowly(batches):
    """Runs on executors. It takes a moment for each batch, so that something may happen meanwhile."""
    for batch in batches:
        time.sleep(0.2)
        yield batch


def unchanged(key, rows):
    time.sleep(0.05)
    return rows[["key", "seq", "data"]]


@spark_consumer(app, "orders", publishes="handled", max_rows=200, max_wait="0.5s", ack_wait="5s", backoff=0.1, max_deliver=1000)
def handled(df):
    return each_key(df, unchanged, "key string, seq bigint, data string").select("key", "data")
'''


def labour(dsn: str, place: str) -> None:
    """Copy a stream by a streaming query and by a handler, until the file `over` exists. A query that fails is restarted."""
    import asyncio
    import threading

    import labour as program

    from headrace_spark import session, stop
    from headrace_spark.pipelines.streams import prepare

    over = Path(place) / "over"

    def copy() -> None:
        while not over.exists():
            try:
                spark = session()
                prepare(spark)
                rows = spark.readStream.format("headrace").options(
                    database=dsn, stream="orders", partitions="2", maxRows="200", settleTimeout="60s"
                )
                copies = rows.load().select("key", "data").mapInArrow(program.slowly, "key string, data string")
                query = copies.writeStream.format("headrace").options(database=dsn, stream="streamed")
                started = query.option("checkpointLocation", f"{place}/checkpoint").start()
                while not started.awaitTermination(1):
                    if over.exists():
                        started.stop()
                        return
            except Exception as error:
                print("query failed", type(error).__name__, str(error)[:2000], file=sys.stderr, flush=True)
                over_or_later(over)

    async def work() -> None:
        program.app.dsn = dsn
        async with program.app.running():
            while not over.exists():  # noqa: ASYNC110 - a file says nothing when it appears
                await asyncio.sleep(0.2)

    thread = threading.Thread(target=copy)
    thread.start()
    asyncio.run(work())
    thread.join()
    stop()


def over_or_later(over: Path) -> None:
    """Wait a moment before the next attempt."""
    import time

    if not over.exists():
        time.sleep(1)
