"""The Spark side of Headrace: handlers that transform large batches as DataFrames, streams as a data source, and pipelines.

Install it with `pip install 'headrace[spark]'`. The core knows nothing of it.

    from headrace_spark import session

    spark = session()                # local[*], or what the settings say
    spark.read.format("headrace").option("stream", "orders").load()
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_spark.handlers.consumer import spark_consumer
    from headrace_spark.session.errors import SparkUnavailable
    from headrace_spark.session.sessions import register, session, stop
    from headrace_spark.session.settings import SparkSettings

__all__ = ["SparkSettings", "SparkUnavailable", "register", "session", "spark_consumer", "stop"]

# The package is imported by every process on a cluster that reads or writes streams: what isn't used isn't loaded.
_LAZY = {
    "SparkSettings": "headrace_spark.session.settings",
    "SparkUnavailable": "headrace_spark.session.errors",
    "register": "headrace_spark.session.sessions",
    "session": "headrace_spark.session.sessions",
    "spark_consumer": "headrace_spark.handlers.consumer",
    "stop": "headrace_spark.session.sessions",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value
