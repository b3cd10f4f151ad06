"""The class that Spark registers as the data source `headrace`.

    spark.read.format("headrace").option("stream", "orders").load()

Spark creates it again in each process that needs it, so it holds only the option texts. `options`
parses them.
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
from headrace_spark.source.tables import comment_of, given_of, options_of, writing_options_of


class HeadraceSource(DataSource):
    """Reads and writes streams. See docs/spark.md for the options."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "headrace"

    def schema(self) -> StructType | str:
        """The columns of a message: key, seq, headers, created_at and data, and stream if there are several.

        With `.schema("key string, seq bigint")` only these columns are read.
        """
        from headrace_spark.source.schema import columns_of

        comment = comment_of(self.options)
        return columns_of(Options.of(given_of(self.options)), comment)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader, for `spark.read`."""
        from headrace_spark.source.reader import HeadraceReader

        return HeadraceReader(Options.of(options_of(self.options, schema)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The streaming reader, for `spark.readStream`."""
        from headrace_spark.source.streaming import HeadraceStreamReader

        return HeadraceStreamReader(Options.of(options_of(self.options, schema)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The batch writer, for `df.write`."""
        from headrace_spark.source.writer import HeadraceWriter

        return HeadraceWriter(writing_options_of(self.options, schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """The streaming writer, for `df.writeStream`."""
        from headrace_spark.source.writer import HeadraceStreamWriter

        return HeadraceStreamWriter(writing_options_of(self.options, schema), schema, overwrite)
