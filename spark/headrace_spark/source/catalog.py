"""Makes a table in Spark's catalog for each stream.

A separate catalog, which lists streams as they come and go, needs a class on Java's class path: PySpark has none for
Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model.errors import ConfigurationError
from headrace.model.text.masking import masked
from headrace_spark.session import register
from headrace_spark.source.connection import find
from headrace_spark.source.options import Options
from headrace_spark.source.queries import Queries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tables(
    spark: SparkSession, namespace: str = "headrace", *, database: str | None = None, pattern: str = ".*"
) -> list[str]:
    """Make a table for each stream that has none, so that SQL knows the streams by their names, with _ for -.

    Tables of streams that were deleted stay.

    Args:
        spark: the session.
        namespace: the database of Spark's catalog that gets the tables. It is made if it does not exist.
        database: a Postgres URL without a password. By default the settings count, here and wherever a table is read.
        pattern: a regular expression. Only streams whose whole names it matches get a table.

    Returns:
        The names of the tables, of new ones and those that there were, with the namespace.

    Raises:
        ConfigurationError: the URL has a password, the pattern is not a regular expression, or two streams would have the
            same table.
        InvalidInput: there are more than 1,000 streams. Write a pattern that matches fewer.
        StoreUnavailable, SchemaError: the streams can't be listed.
    """
    if database is not None and masked(database) != database:
        raise ConfigurationError(
            "The database URL has a password, which would be kept in Spark's catalog in the open. Leave it out and set HEADRACE_DATABASE"
            " where Spark is started."
        )
    register(spark)
    queries = Queries(find(database))
    try:
        streams = [one.name for one in queries.streams(Options(place=find(database), pattern=pattern))]
    finally:
        queries.close()
    spark.sql(f"create database if not exists {_quoted(namespace)}")
    place = "" if database is None else f", database {_text(database)}"
    found = _by_table(streams)
    for table, stream in found.items():
        sql = f"create table if not exists {_quoted(namespace)}.{_quoted(table)} using headrace"
        spark.sql(f"{sql} options (stream {_text(stream)}{place})")
    return [f"{namespace}.{table}" for table in found]


def _by_table(streams: list[str]) -> dict[str, str]:
    """The streams by the names of their tables, which have no hyphen."""
    found: dict[str, str] = {}
    for stream in streams:
        table = stream.replace("-", "_")
        if table in found:
            raise ConfigurationError(
                f"The streams {found[table]!r} and {stream!r} would have the same table {table!r}. Give a pattern that matches only one of them."
            )
        found[table] = stream
    return found


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
