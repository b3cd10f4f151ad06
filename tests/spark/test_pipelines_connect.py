"""Pipelines over Spark Connect: the same command from a client without Java, with a function that the
server can't import.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import store
from tests.spark.filling import fill, read
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
    ended = subprocess.run(  # noqa: ASYNC221 - nothing else runs in this loop
        [sys.executable, "-m", "headrace.cli.main", "spark", "run", "replay", *words, "--json"],
        cwd=tmp_path,
        env=environment(
            HEADRACE_DATABASE=dsn, HEADRACE_SPARK_MASTER="", HEADRACE_SPARK_CONF="", HEADRACE_SPARK_REMOTE=server,
            JAVA_HOME="/nowhere",
        ),
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["into"], report["rows"]) == ("doubles", None), "Spark doesn't tell it over Connect"
    assert sorted(json.loads(data)["n"] for _, _, data in await read(database, "doubles")) == list(range(2, 42, 2))
