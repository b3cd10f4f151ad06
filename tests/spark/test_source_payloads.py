"""Payloads become typed columns, and those that don't fit are found, whatever is in them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructField, StructType

from headrace.model.errors import ConfigurationError, InvalidInput
from headrace_spark.frames.columns import arrow_type
from headrace_spark.source.options import Options
from headrace_spark.source.rows import SCHEMA
from headrace_spark.source.schema import columns_of
from headrace_spark.source.tables import comment_of, given_of, options_of, writing_options_of
from headrace_spark.typed.inference import MAX_FIELDS, infer
from headrace_spark.typed.payloads import Payloads, reason

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2).map(str.lower), inner, max_size=3),
    max_leaves=8,
)


def struct(**types: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def built(kind: DataType, texts: list[str]) -> tuple[list[Any], dict[int, str]]:
    """Return the values of a column of these texts, and what is wrong with those that don't fit."""
    misfits: dict[int, str] = {}
    column = Payloads(kind).build(pa.array(texts), lambda index, error: misfits.update({index: reason(error)}))
    assert column.type == arrow_type(kind)
    return column.to_pylist(), misfits


def test_payloads_that_fit_are_decoded_at_once_and_others_are_found() -> None:
    kind = struct(n=LongType(), tags=ArrayType(LongType()))
    assert built(kind, ['{"n": 1, "tags": [1, null], "more": {}}', "{}"]) == (
        [{"n": 1, "tags": [1, None]}, {"n": None, "tags": None}], {},
    )  # fmt: skip
    values, misfits = built(kind, ['{"n": 1}', '{"n": "x"}', "[]", "null", f'{{"n": {2**63}}}'])
    assert [value is None for value in values] == [False, True, True, True, True]
    assert misfits.keys() == {1, 2, 3, 4}
    assert misfits[1] == "Expected `int | null`, got `str` - at `$.n`"


def test_a_string_takes_any_value_as_json_text() -> None:
    texts = ['{"a": "x"}', '{"a": 1.00}', '{"a": {"b": null}}', '{"a": null}', '{"a": "\\u00e9"}']
    values, misfits = built(struct(a=StringType()), texts)
    assert ([value["a"] for value in values], misfits) == (["x", "1.00", '{"b": null}', None, "é"], {})
    assert built(MapType(StringType(), StringType()), ['{"a": 1, "b": "x"}'])[0] == [[("a", "1"), ("b", "x")]]
    strict = StructType([StructField("a", StringType(), False)])
    assert built(strict, ['{"a": "x"}', '{"a": 1}', '{"a": null}'])[1].keys() == {1, 2}


@given(st.lists(st.dictionaries(st.text(max_size=2).map(str.lower), JSON, max_size=3), min_size=1, max_size=5))
def test_what_a_schema_was_inferred_from_fits_it(payloads: list[dict[str, Any]]) -> None:
    texts = [json.dumps(payload) for payload in payloads]
    kind = infer(texts)
    if kind is not None:
        assert built(kind, texts)[1] == {}


def test_types_are_inferred_as_sparks_json_reader_does() -> None:
    texts = [
        '{"id": 1, "total": 2, "ok": true, "tags": ["a"], "who": {"name": "ann"}, "none": null}',
        '{"id": 3, "total": 2.5, "ok": null, "tags": [], "who": {"age": 7}, "mixed": 1}',
        '{"mixed": "x", "big": 18446744073709551616}', "[1]", '"text"',
    ]  # fmt: skip
    found = infer(texts)
    assert found is not None
    assert found.simpleString() == (
        "struct<big:decimal(20,0),id:bigint,mixed:string,none:string,ok:boolean,tags:array<string>,total:double,"
        "who:struct<age:bigint,name:string>>"
    )
    assert infer(["[1]", "{}", "null"]) is None


def test_payloads_of_endlessly_many_fields_are_refused() -> None:
    many = (json.dumps({f"id{n}": 1}) for n in range(MAX_FIELDS + 2))
    assert infer(['{"a\\"b": 1, "c": 2}']) == struct(c=LongType())
    with pytest.raises(ConfigurationError, match="has a quote, a backslash or a control character"):
        Payloads(struct(**{'a"b': LongType()}))
    with pytest.raises(InvalidInput, match="finds more than 1000 fields"):
        infer(many)
    deep = "[" * 5000 + "]" * 5000
    assert infer([f'{{"a": {deep}}}', '{"b": 1}']) is not None


@pytest.mark.parametrize(
    ("payloads", "names"),
    [
        (['{"ID": 1}', '{"id": 2}'], "'ID' and 'id'"),
        (['{"rows": [{"a": {"Total": 1, "total": 2}}]}'], "'rows.a.Total' and 'rows.a.total'"),
    ],
)
def test_fields_that_differ_in_case_only_are_named(payloads: list[str], names: str) -> None:
    with pytest.raises(
        InvalidInput, match=f"finds the fields {names}, which Spark takes for one. Name those that you need"
    ):
        infer(payloads)


class Row(msgspec.Struct):
    n: int


def options(**given: Any) -> Options:
    return Options.of({"database": "postgresql://ann@db/orders", "stream": "orders", **given})


def test_the_columns_are_given_as_ddl_as_json_or_as_a_python_type() -> None:
    ddl = "region string, `a b` decimal(12, 2)"
    assert columns_of(options(dataSchema=ddl, columnNameOfCorruptRecord="bad`"), "why") == (
        "`key` string not null comment 'why', `seq` bigint, `headers` string, `created_at` timestamp, "
        f"`data` struct<{ddl}>, `bad``` string"
    )
    kind = struct(n=LongType())
    assert columns_of(options(dataSchema=kind.json()))["data"] == StructField("data", kind, True)  # type: ignore[index]
    failfast = columns_of(options(dataSchema=f"{__name__}:Row", mode="FailFast", stream="a,b"))
    assert not isinstance(failfast, str)
    assert failfast["data"] == StructField("data", StructType([StructField("n", LongType(), False)]), False)
    assert failfast.names[-1] == "stream"
    for text, error in (("a.b:C", "can't be imported"), ("{}", "is not a schema as JSON")):
        with pytest.raises(ConfigurationError, match=error):
            columns_of(options(dataSchema=text))


def test_the_options_of_a_table_are_kept_in_a_comment_and_no_password_is() -> None:
    given = {
        "provider": "headrace",
        "owner": "ann",
        "option.stream": "a,b",
        "option.where": "data.x = '1'",
        "stream": "a,b",
    }
    assert given_of(given) == {"stream": "a,b", "where": "data.x = '1'"}
    comment = comment_of(given)
    assert comment is not None
    assert "'" not in comment
    schema = StructType([StructField("key", StringType(), True, {"comment": comment}), *SCHEMA.fields[1:]])
    assert options_of({}, schema) == given_of(given)
    assert options_of({"maxRows": "5"}, schema) == {**given_of(given), "maxRows": "5"}
    assert options_of({"stream": "c"}, schema) == {"stream": "c"}
    assert writing_options_of({}, schema) == {}, "each row names its stream"
    one = StructType(
        [
            StructField("key", StringType(), True, {"comment": comment_of({**given, "option.stream": "a"})}),
            *SCHEMA.fields[1:],
        ]
    )
    assert writing_options_of({}, one) == {"stream": "a"}
    assert writing_options_of({}, StructType(schema.fields[:1])) == {}
    assert (comment_of({"stream": "a"}), options_of({}, SCHEMA)) == (None, {})
    for url in ("postgresql://ann:secret@db/x", "host=db password=secret"):
        with pytest.raises(ConfigurationError, match="has a password") as raised:
            comment_of({"provider": "headrace", "option.database": url})
        assert "secret" not in str(raised.value)
