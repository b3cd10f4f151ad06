"""Work by key: all rows of a key at a time, in the order of their seq."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from headrace.model.errors import InvalidInput
from headrace_spark.frames.keys import each_key

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "key string, seq bigint, total bigint"


@pytest.fixture(scope="module")
def changes(warm_session: SparkSession) -> DataFrame:
    """Thirty changes of three keys, in random order."""
    rows = [(f"k{n % 3}", n, n * n % 7) for n in range(30)]
    random.Random(7).shuffle(rows)
    return warm_session.createDataFrame(rows, "key string, seq bigint, added bigint")


def totals() -> list[tuple[str, int, int]]:
    """The running total of each key."""
    found, sums = [], dict.fromkeys(("k0", "k1", "k2"), 0)
    for n in range(30):
        sums[f"k{n % 3}"] += n * n % 7
        found.append((f"k{n % 3}", n, sums[f"k{n % 3}"]))
    return sorted(found)


def test_a_generator_of_rows_sees_a_key_s_rows_in_order(changes: DataFrame) -> None:
    def running(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
        total = 0
        for row in rows.itertuples():
            total += row.added
            yield {"key": row.key, "seq": row.seq, "total": total}

    assert sorted(map(tuple, each_key(changes, running, SCHEMA).collect())) == totals()


def test_a_function_may_take_the_key_and_return_a_whole_frame(changes: DataFrame) -> None:
    def running(key: str, rows: pd.DataFrame) -> pd.DataFrame | None:
        return None if key == "k1" else rows.assign(total=rows.added.cumsum())[["key", "seq", "total"]]

    assert sorted(map(tuple, each_key(changes, running, SCHEMA).collect())) == [
        row for row in totals() if row[0] != "k1"
    ]


def test_the_same_in_arrow_where_a_null_stays_null(spark: SparkSession, changes: DataFrame) -> None:
    def running(key: str, rows: pa.Table) -> Iterator[Any]:
        import pyarrow.compute as pc

        yield rows.append_column("total", pc.cumulative_sum(rows["added"]))
        yield {"key": key, "total": -1}

    found = sorted(map(tuple, each_key(changes, running, SCHEMA, rows="arrow").collect()), key=str)
    assert found == sorted([*totals(), *((key, None, -1) for key in ("k0", "k1", "k2"))], key=str)


def test_what_can_t_be_done_is_reported(changes: DataFrame) -> None:
    with pytest.raises(InvalidInput, match="each_key needs the columns key and seq, and the DataFrame has added"):
        each_key(changes.select("added"), lambda rows: rows, SCHEMA)
    with pytest.raises(InvalidInput, match=r"rows='polars' is invalid\. It must be"):
        each_key(changes, lambda rows: rows, SCHEMA, rows="polars")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="names no columns"):
        each_key(changes, lambda rows: rows, "bigint")
