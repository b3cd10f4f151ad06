"""Errors for a Spark that can't be started or reached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.model.errors import ConfigurationError, HeadraceError


class SparkUnavailable(HeadraceError):
    """Spark can't be started or reached.

    It is not installed, there is no Java, or a cluster or a Connect server doesn't answer.
    """

    exit_code = 69  # EX_UNAVAILABLE


class SparkMisconfigured(ConfigurationError, SparkUnavailable):
    """Settings with which Spark can never start, such as an invalid master."""


_OF_THE_EXTRA = (
    "pyspark",
    "py4j",
    "pyarrow",
    "pandas",
    "numpy",
    "grpc",
    "grpc_status",
    "google",
    "adbc_driver_manager",
    "adbc_driver_postgresql",
)


@contextmanager
def extra() -> Iterator[None]:
    """Wrap imports of the extra's packages. Raises `SparkUnavailable` with an explanation if one is not installed."""
    try:
        yield
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        # PySpark reports a missing or too old library by an error without a name.
        if name not in _OF_THE_EXTRA and "Pandas" not in str(error) and "PyArrow" not in str(error):
            raise
        raise SparkUnavailable(
            f"Packages of headrace[spark] are not installed ({error}). Run pip install 'headrace[spark]'."
        ) from error
