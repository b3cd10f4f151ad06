#!/usr/bin/env bash
# PySpark 4.3.0: a run of spark-pipelines that completed ends as failed, if a definition registers a Python data source.
#
# Seen:     with `spark.dataSource.register(Numbers)` in a definition, the table is written, the events end with "Run is
#           COMPLETED", and then the command raises UNKNOWN_RESPONSE for an observation named __python_accumulator__, and
#           ends with 1. The same pipeline with the same rows from spark.range ends with 0.
# Expected: 0, since the run is complete. A scheduler takes the 1 for a failure, and repeats the run or alarms somebody.
# Why:      the tasks of a registered source return Python accumulators, and the client of the pipelines' command knows only
#           answers about pipelines.
#
# Needs Python 3.11 or newer, pip, and Java 17 or newer on the path. Exits with 0 while the behaviour is as described.
set -euo pipefail
command -v java > /dev/null || { echo "SKIPPED: no java on the path"; exit 3; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'pyspark[pipelines]==4.3.0' 'pyarrow==26.0.1' 'pandas<3'

mkdir "$folder/registered" "$folder/plain"
for kind in registered plain; do
	cat > "$folder/$kind/spark-pipeline.yml" <<-YAML
	name: numbers
	storage: file://$folder/$kind/storage
	libraries:
	  - glob:
	      include: definitions/**
	YAML
	mkdir "$folder/$kind/definitions"
done
cat > "$folder/registered/definitions/numbers.py" <<'PYTHON'
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition


class Reader(DataSourceReader):
    def partitions(self):
        return [InputPartition(0)]

    def read(self, partition):
        yield (1,)


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "n int"

    def reader(self, schema):
        return Reader()


spark = SparkSession.active()
spark.dataSource.register(Numbers)


@dp.materialized_view
def numbers():
    return spark.read.format("numbers").load()
PYTHON
cat > "$folder/plain/definitions/numbers.py" <<'PYTHON'
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.materialized_view
def numbers():
    return spark.range(1)
PYTHON

run() {
	local code=0
	(cd "$folder/$1" && PATH="$folder/venv/bin:$PATH" PYSPARK_PYTHON="$folder/venv/bin/python" \
		"$folder/venv/bin/spark-pipelines" run --spec spark-pipeline.yml) > "$folder/$1.log" 2>&1 || code=$?
	echo "$1: exit code $code, run completed: $(grep -c 'Run is COMPLETED' "$folder/$1.log"), unknown responses: $(grep -c '\[UNKNOWN_RESPONSE\].*__python_accumulator__' "$folder/$1.log")"
}
seen=$(run registered; run plain)
echo "$seen"
expected='registered: exit code 1, run completed: 1, unknown responses: 1
plain: exit code 0, run completed: 1, unknown responses: 0'
[ "$seen" = "$expected" ] || { echo "CHANGED: not as described"; tail -5 "$folder"/*.log; exit 1; }
echo "As described: the completed run with a registered source ends with 1."
