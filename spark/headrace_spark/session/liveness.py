"""Whether a session is of Spark Connect, and whether it can still be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is a Spark Connect session."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def stopped(spark: SparkSession) -> bool:
    """Whether a session was stopped, or its Java process has ended. Neither Java nor a Connect server is asked."""
    if is_connect(spark):
        return bool(getattr(spark, "is_stopped", False))
    context = spark.sparkContext
    process = getattr(context._gateway, "proc", None)
    return context._jsc is None or (process is not None and process.poll() is not None)


def gone(spark: SparkSession) -> bool:
    """Whether the session is dead.

    This asks Spark, since a session that dies during a job can fail with any error.
    """
    try:
        if stopped(spark):
            return True
        return not spark.version if is_connect(spark) else bool(spark.sparkContext._jsc.sc().isStopped())
    except Exception:
        return True
