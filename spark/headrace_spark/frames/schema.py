"""Payload schemas: a msgspec Struct or a DDL string becomes a decoder and a Spark column.

    class Order(Struct):            "customer string, total decimal(12, 2)
        customer: str                NOT NULL, placed timestamp"
        total: Decimal
        placed: datetime

A Struct's own decoder checks the payloads, and the columns have the names of its fields in JSON.
For a DDL string a decoder is made that is as strict as its types. A number outside the range of an
`int` does not fit, nor does a decimal with more digits than its type. In both cases fields that the
schema does not name are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from pyspark.sql.types import DataType, StructType

from headrace.model.errors import ConfigurationError
from headrace_spark.frames.columns import Column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Schema(msgspec.Struct, frozen=True):
    """A decoder of payloads and the column for the decoded values.

    Attributes:
        decode: decodes JSON text to a Python value. It raises `msgspec.MsgspecError` if the text
            doesn't fit.
        column: builds an Arrow array from these values. Its `kind` is the Spark type.
    """

    decode: Callable[[str], Any]
    column: Column


class Source(Protocol):
    """The source of a schema, checked as far as possible without Spark."""

    def schema(self, spark: SparkSession) -> Schema:
        """Make the schema. Raises `ConfigurationError`."""


def of(schema_type: Any) -> Source | None:
    """Make a schema source from the value of `schema=`.

    Args:
        schema_type: a msgspec Struct, dataclass, TypedDict or NamedTuple, a DDL string such as "id
            bigint, total decimal(12, 2)", or None.

    Returns:
        The source of the schema. It is None for None, and payloads then stay JSON text.

    Raises:
        ConfigurationError: it is none of these, or a type has no column. Errors in a DDL string are
            raised later, since only Spark can find them.
    """
    if schema_type is None:
        return None
    if isinstance(schema_type, str):
        return DDLSchema(schema_type)
    from headrace_spark.frames.python_types import struct_column  # the import takes a moment

    column = struct_column(schema_type)
    return FixedSchema(Schema(msgspec.json.Decoder(schema_type).decode, column))


class FixedSchema(msgspec.Struct, frozen=True):
    """A schema that is made without Spark."""

    fixed: Schema

    def schema(self, spark: SparkSession) -> Schema:
        """See `Source`."""
        return self.fixed


class DDLSchema(msgspec.Struct, frozen=True):
    """A schema from a DDL string, which Spark has to parse."""

    text: str

    def schema(self, spark: SparkSession) -> Schema:
        """See `Source`."""
        return of_struct(parse(self.text, spark))


def parse(text: str, spark: SparkSession) -> StructType:
    """Parse a DDL string with Spark.

    Raises:
        ConfigurationError: Spark can't parse it. The message contains Spark's reason.
    """
    from pyspark.errors import PySparkException

    try:
        found = StructType.fromDDL(text) if text.strip() else None
    except PySparkException as error:
        reason = (error.getMessage() or str(error)).strip().splitlines()[0]
        raise ConfigurationError(f"schema={text!r:.200} can't be read as a DDL string: {reason}") from None
    if not isinstance(found, StructType) or not found.fields:
        raise ConfigurationError(
            f"schema={text!r:.200} names no columns. Write names and types, such as 'id bigint, total decimal(12, 2)'."
        )
    return found


def of_struct(struct: StructType) -> Schema:
    """Make the schema for a Spark struct type. Raises `ConfigurationError` for a type without a JSON form."""
    from headrace_spark.frames.spark_types import decoded

    kind, column = decoded(struct)
    return Schema(msgspec.json.Decoder(kind).decode, column)


class Decoder(msgspec.Struct, frozen=True):
    """Decodes JSON texts of one Spark type, one by one or many together.

    Attributes:
        one: decodes a text. It raises `msgspec.MsgspecError` if the text doesn't fit.
        many: decodes a JSON array of them, which is several times as fast.
        column: builds an Arrow array from these values.
    """

    one: Callable[[str], Any]
    many: Callable[[str], Any]
    column: Column


def decoder(kind: DataType, *, any_as_text: bool) -> Decoder:
    """Make the decoder of a Spark type. Raises `ConfigurationError` for a type without a JSON form.

    Args:
        any_as_text: whether a nullable string takes any JSON value, as JSON text.
    """
    from headrace_spark.frames.spark_types import decoded

    python, column = decoded(kind, any_as_text=any_as_text)
    return Decoder(msgspec.json.Decoder(python).decode, msgspec.json.Decoder(list[python]).decode, column)  # type: ignore[valid-type]
