"""Tasks fail after their write and are retried, and a driver is killed right after its commit. Each row
is published once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.processes import PATIENCE, environment
from tests.spark.written import Written


def run(written: Written, directory: Path, *deadly: str) -> subprocess.CompletedProcess[bytes]:
    """The driver in a separate process group, so that the test can kill it with all of its children."""
    with (directory / "log").open("ab") as log:
        return subprocess.run(
            [sys.executable, "-m", "tests.spark.writer_process", written.url, str(directory), *deadly],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(),
            timeout=PATIENCE,
            start_new_session=True,
            check=False,
        )


@pytest.mark.torture
def test_tasks_that_fail_after_their_write_and_a_driver_that_is_killed_publish_each_row_once(
    dsn: str, tmp_path: Path
) -> None:
    written = Written(dsn)
    written.create("saved")
    written.create("copied")
    keys = [[f"f{file}.k{n}" for n in range(50)] for file in range(3)]
    (tmp_path / "in").mkdir()
    for number, some in enumerate(keys):
        path = tmp_path / "in" / f"{number}.txt"
        path.write_text("\n".join(some))
        os.utime(path, (1_000_000_000 + number,) * 2)  # Spark reads the oldest first

    killed = run(written, tmp_path, "1")
    assert killed.returncode == -9, (tmp_path / "log").read_text()
    assert written.keys("saved") == [f"k.{n}" for n in range(1000)]
    assert sorted(written.keys("copied")) == sorted(keys[0] + keys[1])
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists(), "Spark does not know that it was committed"
    assert sorted((tmp_path / "failures").read_text().split()) == ["0"] * 3 + ["1"] * 3, "each task of three jobs, once"

    went_on = run(written, tmp_path)
    assert went_on.returncode == 0, (tmp_path / "log").read_text()
    assert written.keys("saved") == [f"k.{n}" for n in range(1000)]
    assert sorted(written.keys("copied")) == sorted(keys[0] + keys[1] + keys[2])
    assert written.staged() == 0
