"""The environment of test processes, for what a process has only one of: its Spark session, its Java, its signals."""

from __future__ import annotations

import os

PATIENCE = 180.0  # seconds. A session starts within ten on an idle machine
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options for a Java that runs for seconds only. The better compiler and the other collectors would not pay off."""

LITTLE = {
    "HEADRACE_SPARK_MASTER": "local[1]",
    "HEADRACE_SPARK_CONF": f"spark.driver.memory=512m,spark.driver.extraJavaOptions={QUICK}",
}


def environment(without: tuple[str, ...] = (), **more: str) -> dict[str, str]:
    """Return this environment with settings for a small session, and without variables that change Spark's settings."""
    ours = ("HEADRACE_SPARK_", "SPARK_", "PYSPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours) and name not in without}
    return {**kept, **LITTLE, **more}
