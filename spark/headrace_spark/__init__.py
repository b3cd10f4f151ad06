"""Spark integration of Headrace: DataFrame handlers, a data source for streams, and ready pipelines.

Handlers transform large batches as DataFrames. Install the package with `pip install
'headrace[spark]'`. The core does not depend on it.

    from headrace_spark import session

    spark = session()                # local[*], or what the settings say
    spark.read.format("headrace").option("stream", "orders").load()
"""

from typing import TYPE_CHECKING, Any

# Not imported lazily. Otherwise the package `session` would replace the function of the same name
# as soon as a module imports it. It imports Spark only when a session is made.
from headrace_spark.session import SparkSettings, SparkUnavailable, register, session, stop

if TYPE_CHECKING:
    from headrace_spark.frames.keys import each_key
    from headrace_spark.handlers.consumer import spark_consumer
    from headrace_spark.handlers.warm_session import on_spark_session
    from headrace_spark.pipelines.aggregate import aggregate
    from headrace_spark.pipelines.archive import archive
    from headrace_spark.pipelines.backfill import backfill
    from headrace_spark.pipelines.history import history
    from headrace_spark.pipelines.merge import merge
    from headrace_spark.pipelines.replay import replay
    from headrace_spark.progress.listener import report_lag
    from headrace_spark.source.catalog import tables

__all__ = [
    "SparkSettings",
    "SparkUnavailable",
    "aggregate",
    "archive",
    "backfill",
    "each_key",
    "history",
    "merge",
    "on_spark_session",
    "register",
    "replay",
    "report_lag",
    "session",
    "spark_consumer",
    "stop",
    "tables",
]

# Every process on a cluster that reads or writes streams imports the package, so unused parts are
# not loaded.
_LAZY = {
    "aggregate": "headrace_spark.pipelines.aggregate",
    "archive": "headrace_spark.pipelines.archive",
    "backfill": "headrace_spark.pipelines.backfill",
    "each_key": "headrace_spark.frames.keys",
    "history": "headrace_spark.pipelines.history",
    "merge": "headrace_spark.pipelines.merge",
    "on_spark_session": "headrace_spark.handlers.warm_session",
    "replay": "headrace_spark.pipelines.replay",
    "report_lag": "headrace_spark.progress.listener",
    "spark_consumer": "headrace_spark.handlers.consumer",
    "tables": "headrace_spark.source.catalog",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from headrace_spark.session.errors import extra

    with extra():
        value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value
