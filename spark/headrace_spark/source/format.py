"""The data source `headrace`, as Spark knows it.

    spark.read.format("headrace").option("stream", "orders").load()

Spark makes it anew in each process that needs it, so all that is here is texts; what they mean is found out in `options`.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace_spark.source.options import Options


class HeadraceSource(DataSource):
    """Streams, read and written. See docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        """As it is named in `format`."""
        return "headrace"

    def schema(self) -> StructType:
        """A message: key, seq, headers, created_at and data. With `.schema("key string, seq bigint")` only these are read."""
        from headrace_spark.source.reader import SCHEMA

        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        from headrace_spark.source.reader import HeadraceReader

        return HeadraceReader(Options.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For `spark.readStream`."""
        from headrace_spark.source.streaming import HeadraceStreamReader

        return HeadraceStreamReader(Options.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`."""
        from headrace_spark.source.writer import HeadraceWriter

        return HeadraceWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """For `df.writeStream`."""
        from headrace_spark.source.writer import HeadraceStreamWriter

        return HeadraceStreamWriter(self.options, schema, overwrite)
