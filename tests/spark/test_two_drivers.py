"""Two drivers run a query with one checkpoint at the same time: one of them fails, and each message is copied once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from headrace_spark.session import SparkSettings, session, stop
from tests.spark.processes import PATIENCE, environment
from tests.spark.written import Written

MEETINGS = (
    "StreamMetadata$.write",
    "Multiple streaming queries are concurrently using",
    "only one streaming job runs on a specific checkpoint location",
    "committed or aborted meanwhile",
)
"""What the driver that fails may say. They meet where they write the id of the query, the offsets of a batch, or the end of
one, or where they publish its rows."""


def copy(dsn: str, place: str) -> None:
    """Copy the stream until the file `over` exists."""
    spark = session(SparkSettings(master="local[1]"))
    rows = spark.readStream.format("headrace").options(database=dsn, stream="orders", maxRows="20").load()
    query = rows.select("key", "data").writeStream.format("headrace").options(database=dsn, stream="copies")
    started = query.option("checkpointLocation", f"{place}/checkpoint").start()
    while not started.awaitTermination(1):
        if Path(place, "over").exists():
            started.stop()
    stop()


def publish(written: Written, count: int) -> None:
    written.fetch(
        f"""select headrace.publish_many('orders', array_agg('k' || g), array_agg(json_build_object('n', g)))
            from generate_series(1, {count}) as g"""
    )


def start(dsn: str, directory: Path, number: int) -> subprocess.Popen[bytes]:
    code = (
        f"import sys; sys.path[1:1] = {sys.path!r}; from tests.spark.test_two_drivers import copy; copy(*sys.argv[1:])"
    )
    with (directory / f"{number}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", code, dsn, str(directory)], cwd=directory, env=environment(),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


@pytest.mark.torture
def test_one_of_two_drivers_with_one_checkpoint_fails_and_nothing_is_copied_twice(dsn: str, tmp_path: Path) -> None:
    written = Written(dsn)
    written.create("orders")
    written.create("copies")
    drivers = [start(dsn, tmp_path, number) for number in range(2)]
    end = time.monotonic() + PATIENCE * 2
    try:
        while all(driver.poll() is None for driver in drivers):
            if len(written.keys("copies")) == len(written.keys("orders")):
                publish(written, 30)  # both want to make the next batch of it
            time.sleep(0.2)
            assert time.monotonic() < end
        while len(written.keys("copies")) < len(written.keys("orders")):
            if all(driver.poll() is not None for driver in drivers):  # each has met the other
                drivers.append(start(dsn, tmp_path, len(drivers)))
            assert time.monotonic() < end
            time.sleep(0.2)
        (tmp_path / "over").touch()
        codes = [driver.wait(PATIENCE) for driver in drivers]
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait()
    said = "".join((tmp_path / f"{number}.log").read_text() for number, code in enumerate(codes) if code)
    assert any(sentence in said for sentence in MEETINGS), said
    assert Counter(written.messages("copies")) == Counter(written.messages("orders"))
