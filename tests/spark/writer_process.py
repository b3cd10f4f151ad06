"""A driver process for a test that kills it. Each of its tasks fails once after it has written, and is retried.

    python -m tests.spark.writer_process URL DIRECTORY [BATCH]

It saves a DataFrame into the stream `saved`, and runs a query that copies DIRECTORY/in, file by file,
into the stream `copied`. Once the query has committed BATCH in Postgres, everything is killed: this
process, its Java and all of its workers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace_spark.session import SparkSettings, session, stop
from headrace_spark.source.writer import HeadraceStreamWriter, HeadraceWriter, Staged

if TYPE_CHECKING:
    import pyarrow as pa


def fail_once(failures: str) -> None:
    """Fail at the first attempt, and record it in a file."""
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        with Path(failures).open("a") as noted:
            noted.write(f"{context.partitionId()}\n")
        raise RuntimeError("the task fails after its write")


class Saves(HeadraceWriter):
    def __init__(self, failures: str, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._failures = failures

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        staged = super().write(iterator)
        fail_once(self._failures)
        return staged


class Copies(HeadraceStreamWriter):
    def __init__(self, own: Mapping[str, str], options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._failures, self._deadly, self._group = own["failures"], int(own["deadly"]), int(own["group"])

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        staged = super().write(iterator)
        fail_once(self._failures)
        return staged

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        if batchId == self._deadly:
            os.killpg(self._group, signal.SIGKILL)


OWN = ("failures", "deadly", "group")


class Failing(DataSource):
    """The data source with tasks that fail. Its options name the file to record that in, the last
    batch, and what to kill then.
    """

    @classmethod
    def name(cls) -> str:
        return "failing"

    def writer(self, schema: StructType, overwrite: bool) -> Saves:
        return Saves(self.options["failures"], self._others(), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Copies:  # noqa: N802
        own = {name: self.options[name] for name in OWN}
        return Copies(own, self._others(), schema, overwrite)

    def _others(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name not in OWN}


def main(url: str, directory: Path, deadly: int) -> None:
    failures = str(directory / "failures")
    spark = session(SparkSettings(master="local[2,4]"))
    spark.dataSource.register(Failing)
    frame = spark.range(0, 1000, 1, 2).selectExpr("concat('k.', id) as key", "id as n")
    frame.write.format("failing").mode("append").options(
        database=url, stream="saved", writeId="one", failures=failures
    ).save()
    lines = spark.readStream.option("maxFilesPerTrigger", "1").text(str(directory / "in"))
    query = (
        lines.repartition(2, "value")
        .selectExpr("value as key", "'1' as data")
        .writeStream.format("failing")
        .options(database=url, stream="copied", failures=failures, deadly=str(deadly), group=str(os.getpgid(0)))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else -1)
