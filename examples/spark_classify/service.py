"""Label the tickets of a stream by a classifier, on Spark.

    python classifier.py labelled.jsonl model.npz
    TICKETS_MODEL=$PWD/model.npz headrace run service:app --ship .

The labels of a batch are published and its messages are acked in one transaction. On a cluster, `TICKETS_MODEL` is a path that all
executors can read.
"""

import os
from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
from classifier import load  # type: ignore[import-not-found, unused-ignore]
from pyspark.sql import DataFrame

from headrace import App
from headrace_spark import spark_consumer

MODEL = os.environ["TICKETS_MODEL"]

app = App(streams=["tickets"])


@spark_consumer(app, "tickets", schema="text string NOT NULL", publishes="labelled", max_bytes="64MB", max_wait="2s")
def label(df: DataFrame) -> DataFrame:
    def labelled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        model = load(MODEL)
        for batch in batches:
            found = list(model.classify(batch.column("text").to_pylist()))
            labels, certainties = (
                pa.array([name for name, _ in found], pa.string()),
                pa.array([p for _, p in found], pa.float64()),
            )
            yield pa.record_batch([batch.column("key"), labels, certainties], ["key", "label", "certainty"])

    return df.select("key", "data.text").mapInArrow(labelled, "key string, label string, certainty double")
