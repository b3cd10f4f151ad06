#!/usr/bin/env bash
# PySpark 4.3.0: the project that `spark-pipelines init` makes can be run once.
#
# Seen:     the first `spark-pipelines run` in the new project completes and ends with 0. The second one, with nothing
#           changed, ends with 1: LOCATION_ALREADY_EXISTS names the table that the first one wrote into spark-warehouse. With
#           spark.sql.catalogImplementation=hive both end with 0.
# Expected: a pipeline is run again and again, as its specification has a storage for checkpoints, and `init` says only
#           "To run your pipeline: … spark-pipelines run".
# Why:      Spark's default catalog is in memory and ends with the run. The files of its tables stay, and the next run takes
#           them for those of another table.
#
# Needs Python 3.11 or newer, pip, and Java 17 or newer on the path. Exits with 0 while the behaviour is as described.
set -euo pipefail
command -v java > /dev/null || { echo "SKIPPED: no java on the path"; exit 3; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'pyspark[pipelines]==4.3.0' 'pyarrow==26.0.1' 'pandas<3'
export PATH="$folder/venv/bin:$PATH" PYSPARK_PYTHON="$folder/venv/bin/python"

run() {
	local name=$1 code=0
	shift
	spark-pipelines run "$@" > "$folder/$name.log" 2>&1 || code=$?
	echo "$name: exit code $code, runs completed: $(grep -c 'Run is COMPLETED' "$folder/$name.log"), tables that exist: $(grep -c '^[^ ]*.*\[LOCATION_ALREADY_EXISTS\]' "$folder/$name.log")"
}
seen=$(
	cd "$folder"
	spark-pipelines init --name memory > /dev/null
	spark-pipelines init --name hive > /dev/null
	cd "$folder/memory"
	run memory-1
	run memory-2
	cd "$folder/hive"
	run hive-1 --conf spark.sql.catalogImplementation=hive
	run hive-2 --conf spark.sql.catalogImplementation=hive
)
echo "$seen"
expected='memory-1: exit code 0, runs completed: 1, tables that exist: 0
memory-2: exit code 1, runs completed: 0, tables that exist: 1
hive-1: exit code 0, runs completed: 1, tables that exist: 0
hive-2: exit code 0, runs completed: 1, tables that exist: 0'
[ "$seen" = "$expected" ] || { echo "CHANGED: not as described"; tail -5 "$folder"/*.log; exit 1; }
echo "As described: the project that init makes runs once."
