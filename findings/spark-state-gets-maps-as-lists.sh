#!/usr/bin/env bash
# PySpark 4.3.0: the rows that transformWithState passes to Python have a list of pairs for a map, and a dict for a struct.
#
# Seen:     of the row (by_name map<string, int>, data struct<n: int>) handleInputRows gets by_name=[('a', 1)] and
#           data={'n': 1}, so that `row.by_name["a"]` raises "list indices must be integers or slices, not str", and
#           `row.data.n` raises AttributeError. The functions of `udf` and of the streaming writer's `foreach`, and `collect`,
#           have {'a': 1} and Row(n=1) for the same row.
# Expected: the same Python values for the same columns in each API that passes rows. The documentation says that the rows are
#           of type Row.
# Why:      the rows come as Arrow, and become Python values by pyarrow's as_py() instead of by Spark's own conversion.
#
# Needs Python 3.11 or newer, pip, and Java 17 or newer on the path. Exits with 0 while the behaviour is as described.
set -euo pipefail
command -v java > /dev/null || { echo "SKIPPED: no java on the path"; exit 3; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'pyspark==4.3.0' 'pyarrow==26.0.1' 'pandas<3' 'protobuf'

cat > "$folder/rows.py" <<'PYTHON'
import sys

from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
folder = sys.argv[1]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
spark = builder.config("spark.sql.streaming.stateStore.providerClass", STORE).getOrCreate()
rows = spark.sql("select 1 as key, map('a', 1) as by_name, named_struct('n', 1) as data")
rows.write.parquet(f"{folder}/in")
incoming = spark.readStream.schema(rows.schema).parquet(f"{folder}/in")


def shown(by_name, data):
    return f"by_name={by_name!r}, data={data!r}"


class Show(StatefulProcessor):
    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            yield Row(text=shown(row.by_name, row.data))

    def close(self):
        pass


def run(query, name):
    query.option("checkpointLocation", f"{folder}/{name}").trigger(availableNow=True).start().awaitTermination()


def write(row):
    with open(f"{folder}/written", "a") as file:
        file.write(shown(row.by_name, row.data))


states = incoming.groupBy("key").transformWithState(Show(), "text string", outputMode="Append", timeMode="None")
run(states.writeStream.format("memory").queryName("states"), "states")
run(incoming.writeStream.foreach(write), "foreach")
print("transformWithState:", spark.table("states").first().text)
print("foreach:", open(f"{folder}/written").read())
print("udf:", rows.select(udf(shown, "string")("by_name", "data").alias("text")).first().text)
print("collect:", shown(*rows.select("by_name", "data").collect()[0]))
PYTHON

expected="transformWithState: by_name=[('a', 1)], data={'n': 1}
foreach: by_name={'a': 1}, data=Row(n=1)
udf: by_name={'a': 1}, data=Row(n=1)
collect: by_name={'a': 1}, data=Row(n=1)"
seen=$(cd "$folder" && PYSPARK_PYTHON="$folder/venv/bin/python" "$folder/venv/bin/python" rows.py "$folder" 2> "$folder/log") \
	|| { tail -n 20 "$folder/log"; exit 2; }
echo "$seen"
[ "$seen" = "$expected" ] || { echo "CHANGED: expected"; echo "$expected"; exit 1; }
echo "As described: rows of transformWithState have other values than all others."
