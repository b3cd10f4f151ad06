"""One Spark session for each process of the run: two cores, little memory, kept warm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from headrace_spark.session import SparkSettings, session, stop
from tests.spark.processes import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that all tests of this process share. A test that must change its configuration changes it back."""
    conf = {
        "spark.connect.grpc.binding.port": "0",  # any; for the test that has a Connect server in there
        "spark.default.parallelism": "2",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
    }
    yield session(SparkSettings(master="local[2]", app_name="headrace tests", conf=conf))
    stop()
