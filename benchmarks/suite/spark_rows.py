"""All rows of a DataFrame are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def drained(frame: DataFrame) -> dict[str, Any]:
    """Compute all columns of all rows, and discard them. Returns the number of rows, the sum of their seqs, and the
    bytes of their payloads."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as sql

    seen = Observation()
    totals = frame.observe(
        seen,
        sql.count(sql.lit(1)).alias("rows"),
        sql.sum("seq").alias("seqs"),
        sql.sum(sql.octet_length("data")).alias("bytes"),
    )
    totals.write.format("noop").mode("overwrite").save()
    found: dict[str, Any] = seen.get
    return found
