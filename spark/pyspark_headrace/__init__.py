"""Makes the data source `headrace` known to Spark without a line of code.

Spark imports all packages whose names begin with `pyspark_`, and registers the class `DefaultSource` of each.
`spark.read.format("headrace")` and `using headrace` thus work in every session whose driver has Headrace installed.
"""

from headrace_spark.source.format import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
