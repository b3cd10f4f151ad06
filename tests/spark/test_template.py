"""The Spark handler of the service template: it is off by default, and its own test passes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.main import call
from tests.spark.processes import environment


@pytest.mark.long
def test_the_template_s_test_of_its_spark_handler_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["new", "web-shop"]) == 0
    tests = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        "tests/test_tallies.py",
    ]
    ended = subprocess.run(
        tests, cwd=tmp_path / "web-shop", env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout
