"""Pipelines over Spark Connect: the same command from a client without Java, with a function that the
server can't import.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace import store
from tests.spark.filling import archived, fill, read
from tests.spark.processes import PATIENCE, environment
from tests.spark.test_connect import server

__all__ = ["server"]

PROGRAM = """
import json

def doubled(n):
    return 2 * n

def step(rows):
    def work(batches):
        import pyarrow as pa
        for batch in batches:
            data = [json.dumps({"n": doubled(json.loads(text)["n"])}) for text in batch.column("data").to_pylist()]
            yield pa.RecordBatch.from_arrays([batch.column("key"), batch.column("seq"), pa.array(data)], ["key", "seq", "data"])
    return rows.select("key", "seq", "data").mapInArrow(work, "key string, seq bigint, data string")
"""


def run(server: str, dsn: str, directory: Path, *words: str) -> Any:
    """Run a pipeline in a process without Java. Returns its report."""
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "spark", "run", *words, "--json"],
        cwd=directory,
        env=environment(
            HEADRACE_DATABASE=dsn, HEADRACE_SPARK_MASTER="", HEADRACE_SPARK_CONF="", HEADRACE_SPARK_REMOTE=server,
            JAVA_HOME="/nowhere",
        ),
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.long
@pytest.mark.asyncio
async def test_a_replay_sends_its_function_along(
    server: str, dsn: str, database: store.Database, tmp_path: Path
) -> None:
    await fill(database, "orders", 20)
    await store.create_stream(database, "doubles")
    (tmp_path / "program_of_a_client.py").write_text(PROGRAM)
    words = (
        "--stream",
        "orders",
        "--into",
        "doubles",
        "--function",
        "program_of_a_client.py:step",
        "--checkpoint",
        "c",
    )
    report = run(server, dsn, tmp_path, "replay", *words)
    assert (report["into"], report["rows"]) == ("doubles", None), "Spark doesn't tell it over Connect"
    assert sorted(json.loads(data)["n"] for _, _, data in await read(database, "doubles")) == list(range(2, 42, 2))


@pytest.mark.long
@pytest.mark.asyncio
async def test_an_archive_is_merged(server: str, dsn: str, database: store.Database, tmp_path: Path) -> None:
    await fill(database, "orders", 20, days=2)
    await database.fetch("update headrace_streams.orders set created_at = created_at - interval '10 years'")
    path = tmp_path / "archive"
    options = ("--stream", "orders", "--max-rows", "5", "--table", "delta")
    assert run(server, dsn, tmp_path, "archive", "--path", str(path), *options)["files"] == 4
    merged = run(server, dsn, tmp_path, "merge", "--path", str(path), "--rows-per-file", "6")
    assert (merged["rows"], merged["batches"], merged["files"], merged["first"], merged["last"]) == (10, 1, 2, 1, 10)
    shown = run(server, dsn, tmp_path, "merge", "--path", str(path), "--grace", "0s")
    assert (shown["rows"], shown["batches"], shown["files"]) == (10, 1, 1)
    assert len(list(path.glob("day=2020-01-01/*.parquet"))) == 1
    assert archived(path)["seq"].to_pylist() == list(range(1, 21))
    assert sorted(DeltaTable(path).to_pyarrow_table()["seq"].to_pylist()) == list(range(1, 21))
