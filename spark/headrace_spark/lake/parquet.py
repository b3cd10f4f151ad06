"""Writes rows of an archive to Parquet files, in the form that all readers know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("key", "seq", "headers", "created_at", "data")
ROWS_PER_FILE = 1_000_000
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
_ROW_GROUP = 32 * 1024 * 1024  # bytes that a task's writer buffers for each open file

_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.maxConcurrentOutputFileWriters": "8",  # then Spark does not sort by day
}


@dataclass(frozen=True)
class Form:
    """The form of files. Raises `ConfigurationError` if it is invalid.

    Attributes:
        rows_per_file: maximum number of rows in a file.
        compression: one of `COMPRESSIONS`.
    """

    rows_per_file: int
    compression: str

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise ConfigurationError(
                f"compression={self.compression!r} is invalid. It must be one of {', '.join(COMPRESSIONS)}."
            )
        if self.rows_per_file < 1:
            raise ConfigurationError(f"rows_per_file={self.rows_per_file} is invalid. It must be at least 1.")


def write_files(rows: DataFrame, directory: str, form: Form, partition_by: Sequence[str] = ()) -> tuple[int, int, int]:
    """Write rows to files in a directory.

    Returns:
        The number of rows, and the lowest and the highest seq.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as sql

    observed = Observation()
    counted = rows.observe(
        observed, sql.count(sql.lit(1)).alias("rows"), sql.min("seq").alias("first"), sql.max("seq").alias("last")
    )
    with _settings(rows.sparkSession):
        (
            counted.write.partitionBy(*partition_by)
            .option("maxRecordsPerFile", form.rows_per_file)
            .option("compression", form.compression)
            .option("parquet.block.size", _ROW_GROUP)
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(directory)
        )
    values: dict[str, Any] = observed.get
    return values["rows"], values["first"], values["last"]


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    """The settings that no option of a write can have. The session may be the caller's, so they are set back."""
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)
