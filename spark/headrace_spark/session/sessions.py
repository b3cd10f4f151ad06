"""The process's one warm Spark session."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from typing import TYPE_CHECKING

from headrace_spark.session.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_lock = threading.Lock()
_made: SparkSession | None = None


def session(settings: SparkSettings | None = None, **conf: str) -> SparkSession:
    """The process's one Spark session: made at the first call, the same afterwards."""
    global _made
    with _lock:
        if _made is None:
            _made = _make(settings or SparkSettings(), conf)
        return _made


def stop() -> None:
    """Stop the session, if there is one."""
    global _made
    with _lock:
        if _made is not None:
            _made.stop()
            _made = None


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def register(spark: SparkSession) -> None:
    """Make the data source `headrace` known to a session."""
    try:
        from headrace_spark.source.format import HeadraceSource  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:
        return
    spark.dataSource.register(HeadraceSource)


def _make(settings: SparkSettings, conf: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    master = settings.master or "local[*]"
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        "spark.sql.warehouse.dir": tempfile.gettempdir() + "/headrace-spark-warehouse",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(master).appName(settings.app_name or "headrace")
    for key, value in {**defaults, **settings.conf, **conf}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
