"""Batches become DataFrames with columns, types and order. Most tests check this in Arrow, without a job."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace_spark.frames import schema
from headrace_spark.frames.incoming import Decoded, decode, frame, row_type, table
from headrace_spark.frames.outgoing import outgoing
from tests.support.readers import to_microseconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = datetime(2024, 1, 1, 12, 30, 1, 5, tzinfo=UTC)


class Sent(msgspec.Struct):
    key: str
    seq: int
    raw: str = "1"
    created: int = to_microseconds(AT)
    raw_headers: str | None = None


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(1, 2**62)), unique_by=lambda one: one[1]))
def test_rows_are_sorted_by_key_and_seq(places: list[tuple[str, int]]) -> None:
    rows = table(Decoded([Sent(key, seq) for key, seq in places]))
    assert list(zip(rows["key"].to_pylist(), rows["seq"].to_pylist(), strict=True)) == sorted(places)


def test_a_message_s_row_has_its_key_place_headers_time_and_text(spark: SparkSession) -> None:
    sent = [
        Sent("b", 2, '{"a": "ü"}', to_microseconds(AT + timedelta(days=1)), '{"h": 1}'),
        Sent("a", 3, "null"),
    ]
    made = frame(spark, table(Decoded(sent)))
    assert made.schema == row_type()
    assert [tuple(row) for row in made.collect()] == [
        ("a", 3, None, AT.replace(tzinfo=None), "null"),
        ("b", 2, '{"h": 1}', AT.replace(tzinfo=None) + timedelta(days=1), '{"a": "ü"}'),
    ]


def test_a_large_batch_is_spread_over_partitions_and_its_misfits_are_found(spark: SparkSession) -> None:
    source = schema.of("n tinyint, total decimal(4, 1)")
    assert source is not None
    made = source.schema(spark)
    sent = [Sent(f"k{n % 100:02}", n, f'{{"n": {n % 100}, "total": "{n % 1000}.5"}}') for n in range(25_000)]
    bad = {3: '{"n": 128}', 4_000: '{"total": "1.25"}', 24_999: "[]", 12_500: '{"total": 1000}'}
    for place, payload in bad.items():
        sent[place].raw = payload
    random.Random(7).shuffle(sent)
    misfits: set[int] = set()
    decoded = decode(sent, made, lambda message, _: misfits.add(message.seq))
    assert misfits == set(bad)
    found = frame(spark, table(decoded, made.column.kind), made.column.kind)
    sums = found.selectExpr("count(*)", "sum(data.n)", "cast(sum(data.total) as double)").collect()[0]
    good = [n for n in range(25_000) if n not in bad]
    assert tuple(sums) == (len(good), sum(n % 100 for n in good), sum(n % 1000 + 0.5 for n in good))


def test_a_batch_of_nothing_is_an_empty_dataframe(spark: SparkSession) -> None:
    assert frame(spark, table(Decoded([]))).collect() == []


def test_a_payload_with_a_null_among_its_numbers_goes_all_the_way(spark: SparkSession) -> None:
    source = schema.of("xs array<double>")
    assert source is not None
    made = source.schema(spark)
    decoded = decode([Sent("a", 1, '{"xs": [1.5, null]}')], made, lambda message, error: None)
    found = outgoing(frame(spark, table(decoded, made.column.kind), made.column.kind).select("key", "data"))
    assert [row.data for row in found.collect()] == ['{"xs":[1.5,null]}']
