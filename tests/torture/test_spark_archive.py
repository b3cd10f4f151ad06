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
import anyio.to_thread
import psutil
import pytest

from headrace import store
from tests.spark.filling import archived, fill, publish
from tests.spark.lake.program import CUTS, LAKE
from tests.spark.lake.store import BUCKET, Store, running_store
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


async def test_an_archive_on_an_object_store_that_is_killed_in_each_request_of_a_commit_has_each_message_once(
    dsn: str, database: store.Database, tmp_path: Path
) -> None:
    """The store holds the request until the process that made it is dead."""
    await store.create_stream(database, "orders")
    words = ("--max-rows", "60", "--partitions", "2")
    with running_store() as lake:
        for number, (method, path, after) in enumerate(CUTS.values()):
            await publish(database, "orders", number * 100, (number + 1) * 100)
            with lake.cut(method, path, after=after, hold=True):
                process = start(dsn, tmp_path, *words, store=lake)
                try:
                    await anyio.to_thread.run_sync(lake.wait)
                finally:
                    kill(process)
            seqs = in_lake(lake)
            assert len(seqs) == len(set(seqs)), "a row is there twice"
        assert start(dsn, tmp_path, *words, store=lake).wait(PATIENCE) == 0
        assert in_lake(lake) == list(range(1, len(CUTS) * 100 + 1))


def in_lake(lake: Store) -> list[int]:
    """Return the seqs in the bucket, as any reader sees them that lists it."""
    import pyarrow.parquet
    from pyarrow import fs

    files = fs.S3FileSystem(access_key="a", secret_key="b", region="us-east-1", endpoint_override=lake.endpoint)
    found = files.get_file_info(fs.FileSelector(f"{BUCKET}/orders", allow_not_found=True, recursive=True))
    paths = [one.path for one in found if "/orders/day=" in one.path and one.is_file]
    tables = [pyarrow.parquet.read_table(path, filesystem=files, partitioning=None) for path in paths]
    return sorted(seq for table in tables for seq in table["seq"].to_pylist())


def batches(path: Path) -> int:
    return len(list(path.glob("_headrace/batches/*.json")))


def start(dsn: str, directory: Path, *words: str, store: Store | None = None) -> subprocess.Popen[bytes]:
    path = "archive" if store is None else LAKE
    variables = environment(HEADRACE_DATABASE=dsn) if store is None else store.variables(HEADRACE_DATABASE=dsn)
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "spark", "run", "archive", "--stream", "orders", "--path", path, *words],
        cwd=directory, env=variables,
    )  # fmt: skip


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process with its JVM and all its workers, like a machine that fails."""
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for one in family:
        one.kill()
    psutil.wait_procs(family, timeout=PATIENCE)
    process.wait()
