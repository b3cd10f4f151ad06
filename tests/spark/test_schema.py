"""Schemas: payloads become typed columns, and each payload that doesn't fit is reported. No job runs here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from headrace.model.errors import ConfigurationError
from headrace_spark.frames import schema
from headrace_spark.frames.incoming import decode, table
from headrace_spark.frames.schema import Schema, of_struct
from tests.support.readers import to_microseconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = datetime(2024, 1, 1, 12, tzinfo=UTC)


class Sent(msgspec.Struct):
    raw: str
    key: str = "a"
    seq: int = 1
    created: int = to_microseconds(AT)
    raw_headers: str | None = None


def fill(made: Schema, *payloads: str) -> tuple[list[Any], list[str]]:
    """Return the payloads as Spark reads them, and the errors of those that don't fit."""
    misfits: list[str] = []
    sent = [Sent(payload, seq=place) for place, payload in enumerate(payloads)]
    found = decode(sent, made, lambda message, error: misfits.append(f"{message.seq}: {error}"))
    rows = table(found, made.column.kind)
    return rows.column("data").to_pylist(maps_as_pydicts="strict"), misfits


def of_type(given: Any) -> Schema:
    source = schema.of(given)
    assert isinstance(source, schema.FixedSchema)
    return source.fixed


class Color(Enum):
    RED = "red"


class Size(Enum):
    SMALL = 1


class Point(NamedTuple):
    x: int
    y: float | None = None


class Tags(TypedDict, total=False):
    a: int


@dataclass
class Place:
    city: str
    points: list[Point]


class Everything(msgspec.Struct, kw_only=True, rename="camel"):
    is_new: bool
    count: int
    ratio: float
    name: str | None = None
    total: Decimal
    price: Annotated[Decimal, msgspec.Meta(extra={"precision": 6, "scale": 2})]
    blob: bytes
    placed_at: datetime
    local: Annotated[datetime, msgspec.Meta(tz=False)]
    day: date
    color: Color
    size: Size
    mode: Literal["x", "y"]
    ident: UUID
    place: Place
    tags: Tags
    by_name: dict[str, list[int | None]]
    either: int | str
    number: int | float
    raw: msgspec.Raw
    whatever: Any
    unset: int | msgspec.UnsetType = msgspec.UNSET


EVERYTHING = """{"isNew": true, "count": 1, "ratio": 2, "total": "1.25", "price": 9.99, "blob": "AP8=",
 "placedAt": "2024-01-01T13:00:00+01:00", "local": "2024-01-01T13:00:00", "day": "2024-02-29", "color": "red", "size": 1, "mode": "x",
 "ident": "12345678-1234-5678-1234-567812345678", "place": {"city": "Ulm", "points": [[1, 2.5], [3]]}, "tags": {}, "byName": {"a": [1, null]},
 "either": "e", "number": 3, "raw": {"b": [1]}, "whatever": [1, "x"], "unknown": 1}"""


def test_a_struct_s_fields_become_columns_under_their_names_in_json() -> None:
    made = of_type(Everything)
    rows, misfits = fill(made, EVERYTHING)
    assert misfits == []
    assert rows == [
        {
            "isNew": True, "count": 1, "ratio": 2.0, "name": None, "total": Decimal("1.25").quantize(Decimal(10) ** -18),
            "price": Decimal("9.99"), "blob": b"\0\xff", "placedAt": AT, "local": datetime(2024, 1, 1, 13), "day": date(2024, 2, 29),  # noqa: DTZ001
            "color": "red", "size": 1, "mode": "x", "ident": str(UUID("12345678-1234-5678-1234-567812345678")),
            "place": {"city": "Ulm", "points": [{"x": 1, "y": 2.5}, {"x": 3, "y": None}]}, "tags": {"a": None}, "byName": {"a": [1, None]},
            "either": '"e"', "number": 3.0, "raw": '{"b": [1]}', "whatever": '[1,"x"]', "unset": None,
        }
    ]  # fmt: skip
    kinds = {field.name: field.dataType.simpleString() for field in made.column.kind}  # type: ignore[attr-defined]
    assert kinds["total"] == "decimal(38,18)"
    assert kinds["price"] == "decimal(6,2)"
    assert kinds["local"] == "timestamp_ntz"
    assert kinds["place"] == "struct<city:string,points:array<struct<x:bigint,y:double>>>"
    assert kinds["byName"] == "map<string,array<bigint>>"
    assert kinds["size"] == "bigint"


def test_values_that_python_holds_and_a_column_does_not_are_reported_one_by_one() -> None:
    class Row(msgspec.Struct):
        count: int
        price: Annotated[Decimal, msgspec.Meta(extra={"precision": 4, "scale": 2})] = Decimal(0)

    fits = '{"count": 1}'
    rows, misfits = fill(
        of_type(Row), fits, '{"count": 9223372036854775808}', fits, '{"count": 1, "price": 1.234}', '{"count": "x"}', "no json",
        '{"count": 1, "price": 100}', '{"count": 2}',
    )  # fmt: skip
    assert [row["count"] for row in rows] == [1, 1, 2]
    assert sorted(text.split(":")[0] for text in misfits) == ["1", "3", "4", "5", "6"]
    assert any("Expected `int`, got `str` - at `$.count`" in text for text in misfits)


class Node(msgspec.Struct):
    below: Node | None = None


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (int, "has no fields"),
        (list[int], "has no fields"),
        (Node, "contains itself"),
        (msgspec.defstruct("Odd", [("x", complex)]), "'complex', which can't be decoded"),
        (msgspec.defstruct("Fine", [("x", Annotated[Decimal, msgspec.Meta(extra={"precision": 40})])]), "precision=40"),
    ],
)
def test_a_type_that_can_t_be_a_schema_is_refused_with_a_sentence(given: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        schema.of(given)


def test_without_a_schema_there_is_none() -> None:
    assert schema.of(None) is None


DDL = """id bigint NOT NULL, tiny tinyint, small smallint, whole int, single float, ratio double, total decimal(6, 2), ok boolean,
 name string, code varchar(3), blob binary, at timestamp, local timestamp_ntz, day date, `odd name` array<int>, names map<string, double>,
 inner struct<x: int, y: struct<z: string>>"""


def test_a_ddl_string_is_read_by_spark_and_decoded_as_strictly_as_its_types_are(spark: SparkSession) -> None:
    source = schema.of(DDL)
    assert source is not None
    made = source.schema(spark)
    full = """{"id": 1, "tiny": -128, "small": 32767, "whole": -2147483648, "single": 0.5, "ratio": "NaN", "total": 1234.56, "ok": false,
        "name": "n", "code": "abc", "blob": "AP8=", "at": "2024-01-01T13:00:00+01:00", "local": "2024-01-01T13:00:00", "day": "2024-02-29",
        "odd name": [1, null], "names": {"a": 1.5, "b": null}, "inner": {"x": 1, "y": {"z": "z", "w": 0}}, "unknown": {}}"""
    rows, misfits = fill(made, full, '{"id": 2, "total": "1.50"}')
    assert misfits == []
    first, second = rows
    assert str(first.pop("ratio")) == "nan"
    assert first == {
        "id": 1, "tiny": -128, "small": 32767, "whole": -(2**31), "single": 0.5, "total": Decimal("1234.56"), "ok": False, "name": "n",
        "code": "abc", "blob": b"\0\xff", "at": AT, "local": datetime(2024, 1, 1, 13), "day": date(2024, 2, 29), "odd name": [1, None],  # noqa: DTZ001
        "names": {"a": 1.5, "b": None}, "inner": {"x": 1, "y": {"z": "z"}},
    }  # fmt: skip
    assert second["total"] == Decimal("1.50")
    assert {name for name, value in second.items() if value is not None} == {"id", "total"}


@pytest.mark.parametrize(
    "payload",
    [
        "{}", '{"id": null}', '{"id": 9223372036854775808}', '{"id": 1.5}', '{"id": 1, "tiny": 128}', '{"id": 1, "small": -32769}',
        '{"id": 1, "whole": 2147483648}', '{"id": 1, "total": "12345.00"}', '{"id": 1, "total": 0.001}', '{"id": 1, "total": "NaN"}',
        '{"id": 1, "code": "abcd"}', '{"id": 1, "blob": "%"}', '{"id": 1, "at": "yesterday"}', '{"id": 1, "local": "2024-01-01T00:00:00Z"}',
        '{"id": 1, "day": "2024-02-30"}', '{"id": 1, "odd name": ["1"]}', '{"id": 1, "inner": {"x": "1"}}', "[]", '{"id": 1', "null",
    ],
)  # fmt: skip
def test_what_a_ddl_schema_has_no_room_for_does_not_fit(spark: SparkSession, payload: str) -> None:
    source = schema.of(DDL)
    assert source is not None
    rows, misfits = fill(source.schema(spark), '{"id": 1}', payload, '{"id": 3}')
    assert [row["id"] for row in rows] == [1, 3]
    assert len(misfits) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id bigintt", "can't be read as a DDL string"),
        ("", "names no columns"),
        ("bigint", "names no columns"),
        ("at interval day", "is of type interval day, which has no form in JSON"),
        ("m map<double, int>", "keys of type double"),
        ("a int, a int", "two columns of the same name"),
    ],
)
def test_a_ddl_string_that_can_t_be_a_schema_is_refused_with_a_sentence(
    spark: SparkSession, text: str, reason: str
) -> None:
    source = schema.of(text)
    assert source is not None
    with pytest.raises(ConfigurationError, match=reason) as caught:
        source.schema(spark)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [NullType(), ArrayType(NullType()), MapType(BooleanType(), StringType())])
def test_a_type_that_json_can_t_fill_is_refused(kind: DataType) -> None:
    with pytest.raises(ConfigurationError, match=r"The schema's x"):
        of_struct(StructType([StructField("x", kind)]))


def test_nulls_deep_inside_stay_where_they_are() -> None:
    deep = StructType(
        [
            StructField(
                "a",
                ArrayType(
                    StructType(
                        [
                            StructField("m", MapType(StringType(), ArrayType(IntegerType()))),
                            StructField("d", DoubleType()),
                        ]
                    )
                ),
            ),
            StructField("n", LongType()),
        ]
    )
    made = of_struct(deep)
    given = [
        '{"a": [null, {"m": null}, {"m": {"k": [1, null], "l": null}, "d": 1}]}',
        '{"a": []}',
        '{"a": null, "n": 1}',
    ]
    rows, misfits = fill(made, *given)
    assert misfits == []
    assert rows == [
        {"a": [None, {"m": None, "d": None}, {"m": {"k": [1, None], "l": None}, "d": 1.0}], "n": None},
        {"a": [], "n": None},
        {"a": None, "n": 1},
    ]
