"""Spark sessions: finds Java, reads the settings, makes the session, and checks it with a job."""

from headrace_spark.session.errors import SparkMisconfigured, SparkUnavailable
from headrace_spark.session.liveness import is_connect
from headrace_spark.session.sessions import lacking, register, session, started, stop
from headrace_spark.session.settings import SparkSettings

__all__ = [
    "SparkMisconfigured",
    "SparkSettings",
    "SparkUnavailable",
    "is_connect",
    "lacking",
    "register",
    "session",
    "started",
    "stop",
]
