"""The example of a heavy transform: a classifier that each Python process of the executors loads once."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.runtime.running import consumer, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples/spark_classify"

LABELLED = [
    ("bug", "The export crashes with an error"),
    ("bug", "An error appears and the page crashes"),
    ("question", "How do I change my address?"),
    ("question", "Where can I find the invoice?"),
    ("praise", "Great work, thank you"),
    ("praise", "Thank you, the new page is great"),
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that the example has trained."""
    known = tmp_path / "labelled.jsonl"
    known.write_text("\n".join(json.dumps({"label": label, "text": text}) for label, text in LABELLED))
    subprocess.run([sys.executable, "classifier.py", known, tmp_path / "model.npz"], cwd=EXAMPLE, check=True)
    return tmp_path / "model.npz"


@pytest.fixture
def example(model: Path, spark: SparkSession, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's service. Its executors were started before, so they are sent its module."""
    monkeypatch.setenv("TICKETS_MODEL", str(model))
    monkeypatch.setenv("HEADRACE_DATABASE", dsn)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    spark.sparkContext.addPyFile(str(EXAMPLE / "classifier.py"))
    yield importlib.import_module("service")
    for name in ("service", "classifier"):
        sys.modules.pop(name, None)


def loads(spark: SparkSession) -> dict[int, tuple[int, int]]:
    """Return how often each Python process has loaded a model, and how often it used the loaded one."""

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        import os

        import pyarrow as pa
        from classifier import load

        for _ in batches:
            pass  # Spark ends a process that leaves some of its input
        found = load.cache_info()
        yield pa.record_batch({"process": [os.getpid()], "loads": [found.misses], "uses": [found.hits]})

    rows = spark.range(2, numPartitions=2).mapInArrow(count, "process bigint, loads bigint, uses bigint").collect()
    return {row.process: (row.loads, row.uses) for row in rows}


@pytest.mark.asyncio
async def test_each_process_loads_the_model_once_and_each_ticket_is_labelled_once(
    example: Any, spark: SparkSession
) -> None:
    app = example.app
    loads_of_batches = []
    async with running(app):
        for batch in range(3):
            texts = [(f"tickets.{batch}.{n}", {"text": text}) for n, (_, text) in enumerate(LABELLED)]
            await app.publish_many("tickets", texts)
            await app.idle()
            loads_of_batches.append(loads(spark))
        labelled = await app.database.fetch("""
            select key, data ->> 'label', (data ->> 'certainty')::float8 from headrace_streams.labelled order by seq
        """)
        assert (await consumer(app, "label", "tickets")).num_ack_pending == 0
    wanted = [(f"tickets.{batch}.{n}", label) for batch in range(3) for n, (label, _) in enumerate(LABELLED)]
    assert [(row[0], row[1]) for row in labelled] == wanted
    assert all(0.5 < row[2] <= 1 for row in labelled)
    used = [loaded for found in loads_of_batches for loaded in found.values()]
    assert max(count for count, _ in used) == 1, "a process has loaded it again"
    assert max(uses for _, uses in used) >= 1, "no process has used a loaded model again"
