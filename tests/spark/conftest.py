"""One Spark session for each process of the run, with two cores and little memory. It stays warm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from headrace_spark.session import SparkSettings, register, session, stop
from tests.spark.cluster import Cluster, running_cluster
from tests.spark.processes import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def spark(warm_session: SparkSession) -> SparkSession:
    """The session that all tests of this process share. A test that changes its configuration must change it back."""
    register(warm_session)  # another test may have made another one the active one of this thread
    return warm_session


@pytest.fixture(scope="session")
def warm_session() -> Iterator[SparkSession]:
    """The session, which stays warm."""
    conf = {
        "spark.connect.grpc.binding.port": "0",  # any free port, for the test that runs a Connect server in it
        "spark.default.parallelism": "2",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
    }
    yield session(SparkSettings(master="local[2]", app_name="headrace tests", conf=conf))
    stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster that all tests of this process share. A test that ends its workers makes its own."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
