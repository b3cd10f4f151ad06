"""The Spark side of Headrace: handlers that transform large batches as DataFrames, streams as a data source, and pipelines.

Install it with `pip install 'headrace[spark]'`. The core knows nothing of it.

    from headrace_spark import session

    spark = session()                # local[*], or what the settings say
    spark.read.format("headrace").option("stream", "orders").load()
"""

from typing import TYPE_CHECKING, Any

# Not lazily: the package `session` would take the place of the function of its name as soon as anybody imports it.
# It imports Spark when a session is made.
from headrace_spark.session import SparkSettings, SparkUnavailable, register, session, stop

if TYPE_CHECKING:
    from headrace_spark.frames.keys import each_key
    from headrace_spark.handlers.consumer import spark_consumer
    from headrace_spark.pipelines.aggregate import aggregate
    from headrace_spark.pipelines.archive import archive
    from headrace_spark.pipelines.backfill import backfill
    from headrace_spark.pipelines.replay import replay

__all__ = [
    "SparkSettings",
    "SparkUnavailable",
    "aggregate",
    "archive",
    "backfill",
    "each_key",
    "register",
    "replay",
    "session",
    "spark_consumer",
    "stop",
]

# The package is imported by every process on a cluster that reads or writes streams: what isn't used isn't loaded.
_LAZY = {
    "aggregate": "headrace_spark.pipelines.aggregate",
    "archive": "headrace_spark.pipelines.archive",
    "backfill": "headrace_spark.pipelines.backfill",
    "each_key": "headrace_spark.frames.keys",
    "replay": "headrace_spark.pipelines.replay",
    "spark_consumer": "headrace_spark.handlers.consumer",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from headrace_spark.session.errors import extra

    with extra():
        value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value
