"""The surroundings of processes of their own, for what a process has only one of: its Spark session, its Java, its signals."""

from __future__ import annotations

import os

PATIENCE = 180.0  # seconds; a session starts within ten on a machine that has nothing else to do
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For a Java that works for seconds only: what the better compiler and the other collectors cost, would not come back."""

LITTLE = {
    "HEADRACE_SPARK_MASTER": "local[1]",
    "HEADRACE_SPARK_CONF": f"spark.driver.memory=512m,spark.driver.extraJavaOptions={QUICK}",
}


def surroundings(without: tuple[str, ...] = (), **more: str) -> dict[str, str]:
    """This environment with a small session in it, without anything that would lead elsewhere."""
    ours = ("HEADRACE_SPARK_", "SPARK_", "PYSPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours) and name not in without}
    return {**kept, **LITTLE, **more}
