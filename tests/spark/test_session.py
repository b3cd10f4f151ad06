"""The process's one Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from headrace_spark.session import is_connect, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_session_runs_python_in_its_workers_and_is_the_same_at_every_call(spark: SparkSession) -> None:
    def doubled(parts):  # type: ignore[no-untyped-def]
        for part in parts:
            yield pd.DataFrame({"id": part["id"] * 2})

    assert [row.id for row in spark.range(3).mapInPandas(doubled, "id bigint").collect()] == [0, 2, 4]
    assert session() is spark
    assert not is_connect(spark)
