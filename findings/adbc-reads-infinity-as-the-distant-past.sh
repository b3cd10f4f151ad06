#!/usr/bin/env bash
# adbc-driver-postgresql 1.13.0: infinity in a date or timestamp of PostgreSQL becomes a moment before -infinity.
#
# Seen:     dates and timestamps arrive in Arrow with another epoch, and the addition overflows without an error. 'infinity' is
#           the smallest value of all, one day or one microsecond below '-infinity', and both are in the past. `until > now()`
#           finds the unlimited lease in Postgres, and the same filter in pyarrow does not. A sort puts it first. A finite
#           timestamp of the year 294276, which Postgres can store and Arrow's microseconds can't hold, wraps around, too.
# Expected: an error, as for an interval that does not fit, which the same driver refuses, and as for a timestamp that does not
#           fit and is bound to a parameter, for which the driver's documentation promises one. Or else the largest value.
# Why:      the value of the wire is added to the difference of the epochs in the same width, unchecked.
#
# Needs Python 3.11 or newer and pip, on Linux. Exits with 0 while the behaviour is as described.
. "$(dirname "$0")/postgres.sh"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
	'adbc-driver-postgresql==1.13.0' 'adbc-driver-manager==1.13.0' 'pyarrow==26.0.1'

cat > "$folder/read.py" <<'PYTHON'
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_postgresql import dbapi
from servers import connect, servers

LEASES = """
create table leases (name text, until timestamptz, day date);
insert into leases values ('unlimited', 'infinity', 'infinity'), ('void', '-infinity', '-infinity'),
                          ('old', '2020-01-01', '2020-01-01'), ('new', '2100-01-01', '2100-01-01')
"""
MOMENTS = "select timestamp 'infinity', timestamp '-infinity', timestamp '294276-01-01'"


def names(leases, column):
    return leases.sort_by(column)["name"].to_pylist()


as_described = True
for url in servers():
    with connect(url) as connection, dbapi.connect(url) as arrow, arrow.cursor() as cursor:
        (version,) = connection.execute("show server_version").fetchone()
        connection.execute(LEASES)
        there = connection.execute("select array_agg(name order by until) from leases").fetchone()[0]
        running = connection.execute("select array_agg(name order by name) from leases where until > now()").fetchone()[0]
        cursor.execute("select * from leases")
        leases = cursor.fetch_arrow_table()
        now = pa.scalar(datetime.now(UTC), leases.schema.field("until").type)
        found = leases.filter(pc.greater(leases["until"], now))["name"].to_pylist()
        print(f"PostgreSQL {version}: sorted {there}, running {running}", flush=True)
        print(f"the same in Arrow: sorted {names(leases, 'until')}, by day {names(leases, 'day')}, running {found}")
        as_described &= (there, running) == (["void", "old", "new", "unlimited"], ["new", "unlimited"])
        as_described &= names(leases, "until") == names(leases, "day") == ["unlimited", "void", "old", "new"]
        as_described &= found == ["new"]
        cursor.execute(MOMENTS)
        moments = [column.cast(pa.int64()).to_pylist()[0] for column in cursor.fetch_arrow_table()]
        print(f"microseconds of infinity, -infinity and the year 294276: {moments}")
        as_described &= moments[0] == moments[1] - 1 and max(moments) < 0
        try:
            cursor.execute("select interval '2562048 hours'")
            cursor.fetch_arrow_table()
            refused = None
        except dbapi.Error as error:
            refused = str(error).splitlines()[0]
        print(f"an interval that does not fit: {refused}")
        as_described &= refused is not None and "overflow" in refused
sys.exit(not as_described)
PYTHON
"$folder/venv/bin/python" "$folder/read.py" "$folder" || { echo "CHANGED: not as described"; exit 1; }
echo "As described: the unlimited lease ended long ago."
