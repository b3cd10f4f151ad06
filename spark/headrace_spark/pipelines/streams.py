"""Streams as input of pipelines: the selection of messages, the streaming DataFrame, and a consumer's position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace_spark.source.connection import connect, fetch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a pipeline reads from a stream. See the options of the data source."""

    stream: str
    filters: tuple[str, ...] = (">",)
    where: str | None = None
    start: str = "earliest"
    max_rows: int | None = None
    partitions: int | None = None
    fail_on_data_loss: bool = True
    consumer: str | None = None

    def options(self, database: str) -> dict[str, str]:
        """The selection as options of the data source."""
        found = {
            "database": database,
            "stream": self.stream,
            "filter": msgspec.json.encode(self.filters).decode(),
            "start": self.start,
            "failOnDataLoss": "true" if self.fail_on_data_loss else "false",
        }
        more = {"where": self.where, "maxRows": self.max_rows, "partitions": self.partitions, "consumer": self.consumer}
        return found | {name: str(value) for name, value in more.items() if value is not None}


def stream_of(spark: SparkSession, database: str, selection: Selection) -> DataFrame:
    """A stream as a streaming DataFrame with the columns `key`, `seq`, `headers`, `created_at` and `data`."""
    return spark.readStream.format("headrace").options(**selection.options(database)).load()


def confirm(database: str, stream: str, consumer: str, position: int) -> None:
    """Move a consumer's cursor to `position`, up to which everything is done."""
    with connect(database) as connection:
        fetch(
            connection,
            database,
            "select headrace_internal.confirm_range($1::text, $2::text, $3::bigint)",
            stream,
            consumer,
            position,
        )
