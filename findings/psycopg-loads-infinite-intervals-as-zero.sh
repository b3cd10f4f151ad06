#!/usr/bin/env bash
# psycopg 3.3.9: an infinite interval of PostgreSQL 18.4 is loaded as timedelta(0).
#
# Seen:     `select interval 'infinity'` returns datetime.timedelta(0), and so do '-infinity', an element of an array, and
#           `timestamptz 'infinity' - now()`. An interval that is read and written back is 00:00:00. In the binary format
#           (`binary=True`) the same values raise DataError, and an infinite date raises it in both formats.
# Expected: DataError. The documentation ("Dates and times limits in Python") promises it for dates, timestamps and times that
#           Python can't represent. It does not mention intervals, which may be infinite since PostgreSQL 17.
# Why:      each part of the pattern by which the text is parsed is optional, so it matches the empty start of "infinity".
#
# Needs Python 3.11 or newer and pip, on Linux. Exits with 0 while the behaviour is as described.
. "$(dirname "$0")/postgres.sh"

cat > "$folder/load.py" <<'PYTHON'
import sys
from datetime import timedelta
from pathlib import Path

import psycopg
from servers import connect, server, wheel

EXPECTED = {  # in the text format, in the binary format
    "interval 'infinity'": (timedelta(0), "DataError"),
    "interval '-infinity'": (timedelta(0), "DataError"),
    "array[interval 'infinity']": ([timedelta(0)], "DataError"),
    "timestamptz 'infinity' - now()": (timedelta(0), "DataError"),
    "date 'infinity'": ("DataError", "DataError"),
    "interval '1 day'": (timedelta(1), timedelta(1)),
}


def loaded(connection, expression, binary):
    """The value, or the kind of error."""
    try:
        return connection.execute(f"select {expression}", binary=binary).fetchone()[0]
    except psycopg.Error as error:
        return type(error).__name__


as_described = True
with server(wheel / "pginstall18" / "bin", Path(sys.argv[1]) / "data") as url, connect(url) as connection:
    print(f"PostgreSQL {connection.info.parameter_status('server_version')}, psycopg {psycopg.__version__}", flush=True)
    for expression, expected in EXPECTED.items():
        seen = tuple(loaded(connection, expression, binary) for binary in (False, True))
        print(f"{expression}: as text {seen[0]!r}, as binary {seen[1]!r}", flush=True)
        as_described &= seen == expected
    connection.execute("create table queues as select interval 'infinity' as retention")
    (retention,) = connection.execute("select retention from queues").fetchone()
    connection.execute("update queues set retention = %s", [retention])
    (written,) = connection.execute("select retention::text from queues").fetchone()
    print(f"infinity, read and written back: {written}")
    as_described &= written == "00:00:00"
sys.exit(not as_described)
PYTHON
"$folder/venv/bin/python" "$folder/load.py" "$folder" || { echo "CHANGED: not as described"; exit 1; }
echo "As described: infinity becomes zero."
