"""The options of a table in Spark's catalog, `create table orders using headrace options (stream 'orders')`.

Spark 4.3 gives them to the data source only while the table is created, and later only its schema. They are therefore
kept in the comment of the first column, and are taken from there whenever the table is read or written. A password is
never kept there: comments go wherever a DataFrame is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from pyspark.sql.types import StructType

from headrace.model.errors import ConfigurationError
from headrace.model.text.masking import masked

_PREFIX = "headrace table "
_ONCE = ("dataschema", "inferschema", "samplerows")
"""Options that count only while a table is created, in lower case. Spark keeps the columns that come of them."""

_GIVEN = "option."
"""The prefix under which Spark passes the options of a table that is created."""


def given_of(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options that a user gave. While a table is created, Spark passes more than these."""
    given = {name.lower(): value for name, value in options.items()}
    if "provider" not in given:
        return options
    return {name.removeprefix(_GIVEN): value for name, value in sorted(given.items()) if name.startswith(_GIVEN)}


def comment_of(options: Mapping[str, str]) -> str | None:
    """The comment that keeps the options of a table, or None if no table is created.

    Raises:
        ConfigurationError: the database's URL has a password.
    """
    if "provider" not in {name.lower() for name in options}:
        return None
    kept = given_of(options)
    if masked(kept.get("database", "")) != kept.get("database", ""):
        raise ConfigurationError(
            "The database URL of the table has a password, which would be kept in Spark's catalog in the open. Leave the option database out and set"
            " HEADRACE_DATABASE where Spark is started, or use `create temporary view`."
        )
    return _PREFIX + urlencode({name: value for name, value in kept.items() if name not in _ONCE})


def options_of(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options of a read: those of the table, if it is one, with those that are given over them."""
    return {**_kept(schema), **options} if _names_no_stream(options) else options


def writing_options_of(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options of a write. Those of a table count only for rows with all of its columns, as `insert into` makes them.

    A table of several streams has the column `stream`, by which each row names its own.
    """
    kept = _kept(schema)
    if not _names_no_stream(options) or not {"key", "seq", "headers", "created_at"} <= set(schema.names):
        return options
    taken = ("database",) if "," in kept.get("stream", "") else ("database", "stream")
    return {**{name: kept[name] for name in taken if name in kept}, **options}


def _names_no_stream(options: Mapping[str, str]) -> bool:
    return not {name.lower() for name in options} & {"stream", "path", "streampattern"}


def _kept(schema: StructType) -> dict[str, str]:
    for field in schema.fields[:1]:
        comment = str(field.metadata.get("comment", ""))
        if comment.startswith(_PREFIX):
            return dict(parse_qsl(comment.removeprefix(_PREFIX), keep_blank_values=True))
    return {}
