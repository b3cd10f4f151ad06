"""The columns of a read without `.schema(…)`: those of a message, with a typed payload if the options say so."""

from __future__ import annotations

import json
import re
from importlib import import_module
from typing import Any

from pyspark.sql.types import DataType, StringType, StructField, StructType

from headrace.model.errors import ConfigurationError, InvalidInput
from headrace_spark.frames.pieces import STREAM
from headrace_spark.source.options import Options
from headrace_spark.source.queries import Queries
from headrace_spark.source.ranges import Ranges
from headrace_spark.source.rows import SCHEMA
from headrace_spark.typed.inference import infer

_WINDOW = 50
"""Number of seqs that are searched for each message of a sample."""


def columns_of(options: Options, comment: str | None = None) -> StructType | str:
    """The columns, as a type, or as a DDL string that Spark parses.

    Args:
        comment: a comment for the first column.

    Raises:
        ConfigurationError: the payload's schema can't be read.
        InvalidInput: no payload was found from which it could be inferred.
        UnknownStream, SchemaError, StoreUnavailable: raised if it is inferred.
    """
    data = _data(options)
    if isinstance(data, str):
        return _ddl(options, data, comment)
    nullable = data is not None and options.mode == "permissive"
    fields = [
        StructField("data", data, nullable) if data is not None and field.name == "data" else field for field in SCHEMA
    ]
    if comment is not None:
        fields[0] = StructField(fields[0].name, fields[0].dataType, fields[0].nullable, {"comment": comment})
    return StructType([*fields, *_additional(options)])


def _data(options: Options) -> DataType | str | None:
    """The type of the payload, DDL for Spark to parse, or None for JSON text."""
    if options.infer_schema:
        return _inferred(options)
    text = (options.data_schema or "").strip()
    if not text:
        return None
    if text.startswith("{"):
        return _from_json(text)
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text):
        return _from_python(text)
    return text


def _additional(options: Options) -> list[StructField]:
    corrupt = [] if options.corrupt_column is None else [StructField(options.corrupt_column, StringType())]
    return [*([] if options.single else [StructField(STREAM, StringType(), False)]), *corrupt]


def _ddl(options: Options, data: str, comment: str | None) -> str:
    types = {field.name: field.dataType.simpleString() for field in SCHEMA} | {"data": f"struct<{data}>"}
    columns = []
    for field in [*SCHEMA, *_additional(options)]:
        nullable = options.mode == "permissive" if field.name == "data" else field.nullable
        kind = types.get(field.name, field.dataType.simpleString())
        columns.append(f"`{field.name.replace('`', '``')}` {kind}{'' if nullable else ' not null'}")
    if comment is not None:
        columns[0] += f" comment '{comment}'"
    return ", ".join(columns)


def _from_json(text: str) -> DataType:
    try:
        return StructType.fromJson(json.loads(text))
    except Exception as error:
        raise ConfigurationError(
            f"dataSchema={text!r:.200} is not a schema as JSON ({error}). Write the result of schema.json(), or DDL."
        ) from None


def _from_python(path: str) -> DataType:
    """The type of the columns of a Struct, given as `module:Name`."""
    from headrace_spark.frames.python_types import struct_column

    module, _, name = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"dataSchema={path!r} can't be imported: {error}. Write module:Name, of a module on the Python path of Spark's driver."
        ) from None
    return struct_column(found).kind


def _inferred(options: Options) -> DataType:
    queries = Queries(options.place)
    try:
        texts: list[str] = []
        for found in queries.streams(options):
            texts += _sample(queries, options, found.name, found.last)
        inferred = infer(texts)
    finally:
        queries.close()
    if inferred is None:
        raise InvalidInput(
            f"No JSON object is among the last messages of {', '.join(options.streams) or options.pattern}, so there is no schema to infer. Give one"
            " with dataSchema, such as 'region string, total decimal(12, 2)'."
        )
    return inferred


def _sample(queries: Queries, options: Options, stream: str, last: int) -> list[str]:
    """The newest payloads of a stream that match the options."""
    ranges = Ranges(queries, options, stream)
    first = max(ranges.start("earliest") + 1, last - _WINDOW * options.sample_rows + 1)
    if first > last:
        return []
    [*parts] = ranges.parts(first, last, ("seq", "data"), tasks=1)
    texts = []
    for part in parts:
        sql = f"select data from ({part.query}) as sample order by seq desc limit {options.sample_rows}"
        texts += [text for (text,) in queries.fetch(sql)]
    return texts
