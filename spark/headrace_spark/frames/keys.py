"""`each_key`: runs a function per key, with all rows of the key in the order of their seq.

def lines(rows: pandas.DataFrame) -> Iterator[dict]:
    total = 0
    for change in rows.itertuples():
        total += change.added - change.deleted
        yield {"key": change.key, "seq": change.seq, "total": total}

each_key(df, lines, "key string, seq bigint, total bigint")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from headrace.model.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

With = Literal["pandas", "arrow"]
"""The form of the rows that the function gets: a pandas DataFrame or an Arrow table."""


def each_key(
    frame: DataFrame, function: Callable[[Any], Any], schema: StructType | str, *, rows: With = "pandas"
) -> DataFrame:
    """Run a function for each key, with all of its rows sorted by seq. The call is lazy.

    It uses Spark's `applyInPandas` or `applyInArrow` over the column `key`. The rows of one key
    must fit into the memory of one Python process.

    Args:
        frame: a DataFrame with the columns `key` and `seq`, such as a handler's.
        function: takes the rows of a key, or the key and its rows if it has two parameters. It
            returns the same kind as it gets, a pandas DataFrame or an Arrow table. It may also
            return a list or an iterator of these, or of dicts with one for each row of the result.
            A generator works too.
        schema: the schema of the result, as a Spark type or a DDL string.
        rows: "pandas", or "arrow", which is faster and keeps nulls in integer columns.

    Returns:
        The rows that the function returned for all keys.

    Raises:
        InvalidInput: the frame lacks one of the two columns.
    """
    missing = [name for name in ("key", "seq") if name not in frame.columns]
    if missing:
        raise InvalidInput(
            f"each_key needs the columns key and seq, and the DataFrame has {', '.join(frame.columns)}. Keep"
            f" {' and '.join(missing)} when you select columns."
        )
    groups = frame.groupBy("key")
    if rows == "arrow":
        return groups.applyInArrow(_arrow(function, _as_type(schema)), schema)
    if rows == "pandas":
        return groups.applyInPandas(_pandas(function, _as_type(schema).names), schema)
    raise InvalidInput(f"rows={rows!r} is invalid. It must be 'pandas' or 'arrow'.")


def _as_type(schema: StructType | str) -> StructType:
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    found = StructType.fromDDL(schema)
    if not isinstance(found, StructType):
        raise InvalidInput(
            f"schema={schema!r} names no columns. Write names and types, such as 'key string, total bigint'."
        )
    return found


def _called(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Adapt the function to take the key and the rows."""
    if len(inspect.signature(function).parameters) == 2:
        return function  # type: ignore[return-value]
    return lambda _, rows: function(rows)


def _pandas(function: Callable[[Any], Any], names: list[str]) -> Callable[[pd.DataFrame], pd.DataFrame]:
    call = _called(function)

    def of_key(rows: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        ordered = rows.sort_values("seq", ignore_index=True)
        parts, single_rows = _split_result(call(ordered["key"].iloc[0], ordered), pd.DataFrame)
        if single_rows:
            parts.append(pd.DataFrame.from_records(single_rows, columns=names))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=names)

    return of_key


def _arrow(function: Callable[[Any], Any], schema: StructType) -> Callable[[pa.Table], pa.Table]:
    call = _called(function)

    def of_key(rows: pa.Table) -> pa.Table:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        wanted = to_arrow_schema(schema, timezone="UTC")
        ordered = rows.sort_by("seq")
        parts, single_rows = _split_result(call(ordered["key"][0].as_py(), ordered), pa.Table)
        if single_rows:
            parts.append(pa.Table.from_pylist(single_rows, wanted))
        return (
            pa.concat_tables([part.select(wanted.names).cast(wanted) for part in parts])
            if parts
            else wanted.empty_table()
        )

    return of_key


def _split_result(result: Any, whole: type) -> tuple[list[Any], list[dict[str, Any]]]:
    """Split a function's result for a key into whole frames and single rows."""
    if result is None:
        return [], []
    if isinstance(result, whole):
        return [result], []
    parts: list[Any] = []
    single_rows: list[dict[str, Any]] = []
    for one in _each(result):
        if isinstance(one, whole):
            parts.append(one)
        else:
            single_rows.append(one)
    return parts, single_rows


def _each(result: Any) -> Iterator[Any]:
    if isinstance(result, dict) or not isinstance(result, Iterable):
        raise TypeError(
            f"The function of each_key returned a {type(result).__name__}, which is not a sequence of rows. Return a list of dicts, or yield them."
        )
    return iter(result)
