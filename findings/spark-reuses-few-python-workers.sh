#!/usr/bin/env bash
# PySpark 4.3.0: mapInArrow and mapInPandas lose their Python process to next(), and to first().
#
# Seen:     a function that takes its one batch by next() and returns has a new process for each of five tasks, so that what a
#           process keeps, such as a model that functools.cache holds, is loaded for each. So has a function with a loop over
#           its batches, if the action is first() or another one with a limit. With the loop and collect(), one process does
#           all five tasks. Neither an error nor a warning says so.
# Expected: with spark.python.worker.reuse, which is true by default, Spark "does not need to fork() a Python process for
#           every task". In each case all rows were read.
# Why:      the end of the input is a message of its own, which only the step after the last batch reads. A process that meets
#           unread input after its task ends itself, since the next task would take it for its own. And Spark ends a process
#           whose output it does not want to the end.
#
# Needs Python 3.11 or newer, pip, and Java 17 or newer on the path. Exits with 0 while the behaviour is as described.
set -euo pipefail
command -v java > /dev/null || { echo "SKIPPED: no java on the path"; exit 3; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'pyspark==4.3.0' 'pyarrow==26.0.1' 'pandas<3'

cat > "$folder/processes.py" <<'PYTHON'
import os

import pandas as pd
import pyarrow as pa
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("WARN")
numbers = spark.range(0, 10, 1, 1)  # one task, one batch


def arrow(rows):
    return pa.RecordBatch.from_pylist([{"rows": rows, "process": os.getpid()}], pa.schema({"rows": pa.int64(), "process": pa.int64()}))


def pandas(rows):
    return pd.DataFrame({"rows": [rows], "process": [os.getpid()]})


def loop(result, rows_of):
    def function(batches):
        for batch in batches:
            yield result(rows_of(batch))

    return function


def one(result, rows_of):
    def function(batches):
        yield result(rows_of(next(iter(batches))))

    return function


actions = {"collect": lambda frame: frame.collect()[0], "first": lambda frame: frame.first()}
for name, result, rows_of in (("mapInArrow", arrow, lambda batch: batch.num_rows), ("mapInPandas", pandas, len)):
    for how, action in ((loop, "collect"), (one, "collect"), (loop, "first")):
        frame = getattr(numbers, name)(how(result, rows_of), "rows long, process long")
        found = [actions[action](frame) for _ in range(5)]
        rows, processes = {row.rows for row in found}, {row.process for row in found}
        print(f"{name}, {how.__name__}, {action}: rows {rows}, tasks {len(found)}, processes {len(processes)}")
PYTHON

expected='mapInArrow, loop, collect: rows {10}, tasks 5, processes 1
mapInArrow, one, collect: rows {10}, tasks 5, processes 5
mapInArrow, loop, first: rows {10}, tasks 5, processes 5
mapInPandas, loop, collect: rows {10}, tasks 5, processes 1
mapInPandas, one, collect: rows {10}, tasks 5, processes 5
mapInPandas, loop, first: rows {10}, tasks 5, processes 5'
seen=$(cd "$folder" && PYSPARK_PYTHON="$folder/venv/bin/python" "$folder/venv/bin/python" processes.py 2> "$folder/log") \
	|| { tail -n 20 "$folder/log"; exit 2; }
echo "$seen"
[ "$seen" = "$expected" ] || { echo "CHANGED: expected"; echo "$expected"; tail -n 5 "$folder/log"; exit 1; }
echo "As described: next() and first() cost a process each."
