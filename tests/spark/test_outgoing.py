"""DataFrames become messages, by a Spark plan or by Arrow in a Python task. Both make the same JSON."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from struct import pack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from headrace.model.errors import InvalidData, InvalidInput
from headrace_spark.frames.outgoing import check, encode, outgoing, refuse_nulls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INNER = pa.struct([("amount", pa.decimal128(20, 4)), ("note", pa.string()), ("at", pa.timestamp("us", "UTC"))])
TYPES: dict[str, pa.DataType] = {
    "small": pa.int8(),
    "large": pa.int64(),
    "single": pa.float32(),
    "double": pa.float64(),
    "flag": pa.bool_(),
    "total": pa.decimal128(38, 18),
    "text": pa.string(),
    "blob": pa.binary(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "numbers": pa.list_(pa.float64()),
    "parts": pa.list_(INNER),
    "inner": INNER,
    "names": pa.map_(pa.string(), pa.decimal128(20, 4)),
    "by_number": pa.map_(pa.int32(), pa.string()),
}

moments = st.datetimes(datetime(1900, 1, 1), datetime(2500, 1, 1))  # noqa: DTZ001 - strategies add the zone themselves
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
inner = st.fixed_dictionaries(
    {
        "amount": st.none() | st.decimals(-(10**12), 10**12, places=4),
        "note": st.none() | texts,
        "at": st.none() | moments.map(lambda moment: moment.replace(tzinfo=UTC)),
    }
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "small": st.integers(-128, 127),
    "large": st.integers(-(2**63), 2**63 - 1),
    "single": st.floats(width=32),
    "double": st.floats(),
    "flag": st.booleans(),
    "total": st.decimals(-(10**15), 10**15, places=18),
    "text": texts,
    "blob": st.binary(max_size=8),
    "day": st.dates(date(1600, 1, 1), date(9999, 1, 1)),
    "at": moments.map(lambda moment: moment.replace(tzinfo=UTC)),
    "local": moments,
    "numbers": st.lists(st.none() | st.floats(), max_size=3),
    "parts": st.lists(st.none() | inner, max_size=2),
    "inner": inner,
    "names": st.dictionaries(texts, st.none() | st.decimals(-(10**12), 10**12, places=4), max_size=2),
    "by_number": st.dictionaries(st.integers(0, 99), texts, max_size=2),
}
rows = st.lists(
    st.fixed_dictionaries({name: st.none() | value for name, value in VALUES.items()}), min_size=30, max_size=60
)


def table(given_rows: list[dict[str, Any]]) -> pa.Table:
    columns = {name: pa.array([row[name] for row in given_rows], kind) for name, kind in TYPES.items()}
    return pa.table({"key": [f"k.{place}" for place in range(len(given_rows))], **columns})


def by_arrow(frame: pa.Table) -> list[dict[str, Any]]:
    encoded = encode(frame.combine_chunks().to_batches()[0]).to_pylist()
    return [decode(row) for row in encoded]


def by_spark(spark: SparkSession, frame: pa.Table) -> list[dict[str, Any]]:
    schema = from_arrow_schema(frame.schema, prefer_timestamp_ntz=True)
    return [decode(row) for row in outgoing(spark.createDataFrame(frame, schema)).toArrow().to_pylist()]


def decode(row: dict[str, Any]) -> dict[str, Any]:
    """Return the decoded JSON. A number of single precision may have more digits than it needs, as some
    versions of Java write it.
    """
    found = {name: value if name == "key" or value is None else json.loads(value) for name, value in row.items()}
    if isinstance(single := found["data"].get("single"), float):
        found["data"]["single"] = pack("f", single)
    return found


@settings(
    max_examples=4, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)  # each is a Spark job, so nothing is shrunk
@given(rows)
def test_the_plan_and_the_python_task_make_the_same_json(
    warm_session: SparkSession, given_rows: list[dict[str, Any]]
) -> None:
    frame = table(given_rows)
    assert by_spark(warm_session, frame) == by_arrow(frame)


def test_each_type_has_the_form_that_the_documentation_names(spark: SparkSession) -> None:
    moment = datetime(2024, 2, 29, 12, 30, 0, 5, tzinfo=UTC)
    row = {
        "small": -128, "large": 2**63 - 1, "single": 0.1, "double": float("nan"), "flag": True, "total": Decimal("1.5"),
        "text": 'ü"\n', "blob": b"\x00\xff", "day": date(2024, 2, 29), "at": moment, "local": moment.replace(tzinfo=None),
        "numbers": [float("inf"), -float("inf"), 1.5, None], "parts": [{"amount": Decimal(1), "note": None, "at": None}, None],
        "inner": None, "names": {"a": Decimal("0.0001")}, "by_number": {7: "x"},
    }  # fmt: skip
    expected = {
        "small": -128, "large": 2**63 - 1, "single": pack("f", 0.1), "double": "NaN", "flag": True, "total": "1.500000000000000000",
        "text": 'ü"\n', "blob": "AP8=", "day": "2024-02-29", "at": "2024-02-29T12:30:00.000005Z",
        "local": "2024-02-29T12:30:00.000005", "numbers": ["Infinity", "-Infinity", 1.5, None],
        "parts": [{"amount": "1.0000", "note": None, "at": None}, None], "inner": None, "names": {"a": "0.0001"},
        "by_number": {"7": "x"},
    }  # fmt: skip
    frame = table([row])
    assert by_arrow(frame) == by_spark(spark, frame) == [{"key": "k.0", "headers": None, "data": expected}]


def test_a_column_data_is_the_data_as_json_text_or_of_any_type(spark: SparkSession) -> None:
    frame = spark.sql(
        """select 'a' as key, 1L as seq, now() as created_at, '{"a": 1}' as data, map('h', 1) as headers, 7 as number,
                  named_struct('x', 1.50) as struct, 'text' as text"""
    )
    same = outgoing(frame.select("key", "seq", "created_at", "headers", "data")).collect()[0]
    assert (same.data, json.loads(same.headers)) == ('{"a": 1}', {"h": 1})
    both = outgoing(frame.selectExpr("key", "number as data")).union(
        outgoing(frame.selectExpr("key", "struct as data"))
    )
    assert [json.loads(row.data) for row in both.collect()] == [7, {"x": "1.50"}]
    batch = pa.RecordBatch.from_pydict({"key": ["a"], "data": [7], "headers": [{"h": 1}]})
    assert encode(batch).to_pylist() == [{"key": "a", "headers": '{"h":1}', "data": "7"}]


def struct(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (struct(id=StringType(), total=LongType()), "has no string column `key`"),
        (struct(key=LongType(), total=LongType()), "has a `key` that is not a string"),
        (struct(key=StringType()), "has no column for the data"),
        (struct(key=StringType(), headers=StringType()), "has no column for the data"),
        (struct(key=StringType(), data=StringType(), total=LongType()), "has both `data` and total"),
        (struct(key=StringType(), data=StringType(), headers=IntegerType()), "has `headers` that are neither"),
        (StructType([StructField("key", StringType())] * 2), "has two columns of the same name"),
    ],
)
def test_wrong_columns_are_reported_in_one_sentence(schema: StructType, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(schema)
    text = str(caught.value)
    assert reason in text
    assert "It needs a string column `key`" in text
    assert all(name in text for name in schema.names)


def test_a_type_without_a_form_in_json_is_named_with_its_place() -> None:
    for kind, place in (
        (ArrayType(struct(x=DayTimeIntervalType())), r"a\[\].x is of type interval"),
        (MapType(DoubleType(), StringType()), r"a \(its keys\) is of type double"),
    ):
        with pytest.raises(InvalidInput, match=place):
            check(struct(key=StringType(), a=kind))


def test_a_null_key_or_null_data_is_refused() -> None:
    for column in ("key", "data"):
        rows = {"key": ["a", "b"], "data": ["1", "2"], column: ["1", None]}
        with pytest.raises(InvalidInput, match=f"1 of 2 rows of the DataFrame have a null `{column}`"):
            encode(pa.RecordBatch.from_pydict(rows))
    refuse_nulls(pa.table({"key": ["a"], "data": ["1"]}))


def test_a_null_in_a_column_data_of_any_type_is_a_null_in_the_plan_too(spark: SparkSession) -> None:
    frame = spark.sql("select 'a' as key, cast(null as int) as data union all select 'b', 1")
    with pytest.raises(InvalidInput, match="1 of 2 rows"):
        refuse_nulls(outgoing(frame).toArrow())


def test_a_time_that_python_has_no_date_for_is_reported() -> None:
    late = pa.array([300_000_000_000_000_000], pa.timestamp("us", "UTC"))
    with pytest.raises(InvalidData, match="can't be written as JSON"):
        encode(pa.RecordBatch.from_arrays([pa.array(["a"]), late], ["key", "at"]))
