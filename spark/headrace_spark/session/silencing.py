"""Silences what Spark and py4j log about errors that are raised as well."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace_spark.session.settings import Resolved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# These loggers write all that Java knows about a failed task, and the same error is also raised
# here.
REDUNDANT_LOGGERS = (
    "org.apache.spark.api.python",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources",
    "org.apache.spark.sql.execution.python",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.util.Utils",
)

# An executor may still report to a driver that has just closed its part of the conversation. Spark logs that as an error.
LOGGERS_OF_THE_CONNECTIONS = (
    "org.apache.spark.network",
    "org.apache.spark.rpc",
    "org.apache.spark.scheduler.TaskSchedulerImpl",
    "org.apache.spark.scheduler.cluster",
)


def silence_python_loggers() -> None:
    """Silence PySpark's JSON output about errors that it also raises, since it repeats them unreadably.

    Also silence py4j, which logs the traceback of a broken connection through the root logger.
    """
    logging.getLogger().addFilter(_not_from_py4j)
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _not_from_py4j(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def logs_little(resolved: Resolved | None) -> bool:
    """Whether the user has left it to us what Java logs."""
    return resolved is not None and "spark.log.level" not in resolved.settings.conf


def silence(spark: SparkSession, loggers: Iterable[str]) -> None:
    """Silence loggers of Java."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j
    for name in loggers:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
