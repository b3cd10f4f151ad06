"""An archive process is killed repeatedly while messages are published. Each message is archived once,
and no duplicate ever exists.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import anyio
import psutil
import pytest

from headrace import store
from tests.spark.filling import archived, fill, publish
from tests.spark.processes import PATIENCE, environment

pytestmark = [pytest.mark.asyncio, pytest.mark.torture]

ROUNDS = 4
PUBLISHED = 3_000  # in each round


async def test_an_archive_that_is_killed_again_and_again_has_each_message_once(
    dsn: str, database: store.Database, tmp_path: Path
) -> None:
    chance = random.Random(7)
    await fill(database, "orders", PUBLISHED)
    path = tmp_path / "archive"
    for number in range(1, ROUNDS + 1):
        known = batches(path)
        process = start(dsn, tmp_path, "--continuous", "--every", "0.1s", "--max-rows", "200")
        try:
            with anyio.fail_after(PATIENCE):
                while batches(path) < known + 2:
                    assert process.poll() is None, "it has ended by itself"
                    await asyncio.sleep(0.05)
            await asyncio.sleep(chance.random())  # wherever it is then
        finally:
            kill(process)
        seqs = archived(path)["seq"].to_pylist()
        assert len(seqs) == len(set(seqs)), "a row is there twice"
        await publish(database, "orders", number * PUBLISHED, (number + 1) * PUBLISHED)

    assert start(dsn, tmp_path).wait(PATIENCE) == 0
    assert archived(path)["seq"].to_pylist() == list(range(1, (ROUNDS + 1) * PUBLISHED + 1))


def batches(path: Path) -> int:
    return len(list(path.glob("_headrace/batches/*.json")))


def start(dsn: str, directory: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "spark", "run", "archive", "--stream", "orders", "--path", "archive", *words],
        cwd=directory, env=environment(HEADRACE_DATABASE=dsn),
    )  # fmt: skip


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process with its JVM and all its workers, like a machine that fails."""
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for one in family:
        one.kill()
    psutil.wait_procs(family, timeout=PATIENCE)
    process.wait()
