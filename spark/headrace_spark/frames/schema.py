"""The schema of payloads: from a msgspec Struct, or from a DDL string, to what decodes them and to the column that Spark sees.

    class Order(Struct):            "customer string, total decimal(12, 2)
        customer: str                NOT NULL, placed timestamp"
        total: Decimal
        placed: datetime

A Struct's own decoder judges the payloads; the columns have the names that its fields have in JSON. From a DDL string a decoder is made that is as
strict as its types: a number that is out of an `int`'s range, or a decimal with more digits than its type, does not fit.
Either way fields that the schema doesn't name are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from pyspark.sql.types import StructType

from headrace.model.errors import ConfigurationError
from headrace_spark.frames.columns import Column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Schema(msgspec.Struct, frozen=True):
    """How payloads become a column.

    Attributes:
        decode: from JSON text to a Python value; raises `msgspec.MsgspecError` when it doesn't fit.
        column: from these values to an Arrow array; its `kind` is the Spark type.
    """

    decode: Callable[[str], Any]
    column: Column


class Source(Protocol):
    """What a schema is made of, checked as far as can be without Spark."""

    def schema(self, spark: SparkSession) -> Schema:
        """Raises `ConfigurationError`."""


def of(given: Any) -> Source | None:
    """From what `schema=` takes.

    Args:
        given: a msgspec Struct, dataclass, TypedDict or NamedTuple; a DDL string such as "id bigint, total decimal(12, 2)"; or None.

    Returns:
        The schema's source, or None for none: then payloads stay JSON text.

    Raises:
        ConfigurationError: it is neither, or a type has no column. What is wrong with a DDL string only Spark can tell, later.
    """
    if given is None:
        return None
    if isinstance(given, str):
        return FromDDL(given)
    from headrace_spark.frames.python_types import record_of  # which needs a moment

    column = record_of(given)
    return Ready(Schema(msgspec.json.Decoder(given).decode, column))


class Ready(msgspec.Struct, frozen=True):
    """A schema that needs no Spark."""

    made: Schema

    def schema(self, spark: SparkSession) -> Schema:
        """See `Source`."""
        return self.made


class FromDDL(msgspec.Struct, frozen=True):
    """A schema that Spark has to parse."""

    text: str

    def schema(self, spark: SparkSession) -> Schema:
        """See `Source`."""
        return of_struct(parse(self.text, spark))


def parse(text: str, spark: SparkSession) -> StructType:
    """A DDL string as Spark reads it.

    Raises:
        ConfigurationError: Spark can't read it, in the words that Spark has for it.
    """
    from pyspark.errors import PySparkException

    try:
        found = StructType.fromDDL(text) if text.strip() else None
    except PySparkException as error:
        said = (error.getMessage() or str(error)).strip().splitlines()[0]
        raise ConfigurationError(f"schema={text!r:.200} can't be read as a DDL string: {said}") from None
    if not isinstance(found, StructType) or not found.fields:
        raise ConfigurationError(
            f"schema={text!r:.200} names no columns: write names and types, such as 'id bigint, total decimal(12, 2)'."
        )
    return found


def of_struct(struct: StructType) -> Schema:
    """The schema of Spark's own type. Raises `ConfigurationError` for a type that JSON payloads can't fill."""
    from headrace_spark.frames.spark_types import decoded

    kind, column = decoded(struct)
    return Schema(msgspec.json.Decoder(kind).decode, column)
