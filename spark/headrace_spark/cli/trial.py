"""A trial of everything that reads and writes streams on Spark, with ten rows of a stream of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

from headrace.model.errors import HeadraceError
from headrace_spark.pipelines.database import open_database
from headrace_spark.pipelines.running import PipelineFailed, translated_errors

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from pyspark.sql import SparkSession

ROWS = 10


def trial(spark: SparkSession, database: str | None, done: Callable[[str, float], None]) -> None:
    """Write ten rows into a new stream, read them, and send them through a Python function into it again. The stream is
    deleted afterwards.

    Args:
        spark: the session.
        database: a Postgres URL that executors must reach. None uses the settings.
        done: called after each part with its name and the seconds that it took.

    Raises:
        HeadraceError: a part failed. The message names it, and what is missing there.
    """
    with open_database(database) as opened:
        name = f"headrace-check-{uuid4().hex[:12]}"
        opened.create_stream(name)
        try:
            options = {"database": opened.url, "stream": name}

            def write() -> None:
                rows = spark.range(0, ROWS, 1, 2).selectExpr("concat('k.', id) as key", "id as n")
                rows.write.format("headrace").mode("append").options(**options).save()

            def read() -> None:
                found = spark.read.format("headrace").options(**options).load().count()
                if found != ROWS:
                    raise PipelineFailed(f"The read has {found} rows, and {ROWS} were written.")

            def apply() -> None:
                rows = spark.read.format("headrace").options(**options).load().select("key", "data")
                copies = rows.mapInArrow(_same, "key string, data string")
                copies.write.format("headrace").mode("append").options(**options).save()

            for part, work in (("write", write), ("read", read), ("function", apply)):
                began = time.monotonic()
                _try(part, work)
                done(part, time.monotonic() - began)
        finally:
            opened.delete_stream(name)


def _try(part: str, work: Callable[[], None]) -> None:
    try:
        with translated_errors():
            work()
    except HeadraceError as error:
        error.args = (f"The part {part!r} of the trial failed. {error}", *error.args[1:])
        raise


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
