#!/usr/bin/env bash
# PySpark 4.3.0: a DataFrame over a Python data source keeps the filters of the first query that pushed any.
#
# Seen:     with spark.sql.python.filterPushdown.enabled=true, `df.where("n > 6").count()` makes every later query on `df`
#           itself read with that filter: `df.count()` is 10 before and 3 after, without an error or a warning. A query
#           with another filter on the same `df` is right. A DataFrame that is loaded afresh is right, too.
# Expected: a filter belongs to the query that has it, so that `df.count()` is 10 each time.
# Why:      DataSourceReader.pushFilters may change its reader, says its documentation. The reader that was changed replaces
#           the table's own, and the next query without filters asks for no other.
#
# Needs Python 3.11 or newer, pip, and Java 17 or newer on the path. Exits with 0 while the behaviour is as described.
set -euo pipefail
command -v java > /dev/null || { echo "SKIPPED: no java on the path"; exit 3; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'pyspark==4.3.0' 'pyarrow==26.0.1' 'pandas<3'

cat > "$folder/numbers_source.py" <<'PYTHON'
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, GreaterThan, InputPartition


class Numbers(DataSource):
    """The numbers 0 to 9."""

    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "n int"

    def reader(self, schema):
        return NumbersReader()


class NumbersReader(DataSourceReader):
    def __init__(self):
        self.above = -1

    def pushFilters(self, filters):
        for condition in filters:
            if isinstance(condition, GreaterThan):
                self.above = max(self.above, condition.value)
            else:
                yield condition

    def partitions(self):
        return [InputPartition(0)]

    def read(self, partition):
        for number in range(self.above + 1, 10):
            yield (number,)


builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
spark.dataSource.register(Numbers)
df = spark.read.format("numbers").load()
print("all:", df.count())
print("n > 6:", df.where("n > 6").count())
print("all again:", df.count())
print("n > 2:", df.where("n > 2").count())
print("all of another DataFrame:", spark.read.format("numbers").load().count())
PYTHON

expected='all: 10
n > 6: 3
all again: 3
n > 2: 7
all of another DataFrame: 10'
seen=$(cd "$folder" && PYSPARK_PYTHON="$folder/venv/bin/python" "$folder/venv/bin/python" numbers_source.py 2> "$folder/log") \
	|| { tail -n 20 "$folder/log"; exit 2; }
echo "$seen"
[ "$seen" = "$expected" ] || { echo "CHANGED: expected"; echo "$expected"; exit 1; }
echo "As described: the second count of all rows is 3 of 10."
