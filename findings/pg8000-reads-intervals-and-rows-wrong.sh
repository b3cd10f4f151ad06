#!/usr/bin/env bash
# pg8000 1.31.6: negative intervals of less than an hour are read as positive, and NULLs in composite values vanish.
#
# Seen:     a difference of timestamps of -30 minutes is read as +30 minutes, and -1:30:00 as -0:30:00: only the hours keep the
#           sign of the time. `row(1, null, 2)` is read as ('1', '2'), so that the fields behind a NULL move to the front. The
#           bound of the range (,infinity) is read as "nfinit". None of them raises an error, nor do arrays of them.
# Expected: the values that psycopg 3.3.9 reads. With intervalstyle = iso_8601 or postgres_verbose, pg8000 reads the same
#           intervals right.
# Why:      the parser of the style `postgres` splits "-00:30:00" at the colons and takes each part for a number with a sign of
#           its own. The parser of composite values skips a field without characters, which is how Postgres writes NULL.
#
# Needs Python 3.11 or newer and pip, on Linux. Exits with 0 while the behaviour is as described.
. "$(dirname "$0")/postgres.sh"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'pg8000==1.31.6'

cat > "$folder/compare.py" <<'PYTHON'
import sys
from datetime import timedelta
from pathlib import Path

import pg8000.native
from servers import connect, server, wheel

MINUTE = timedelta(minutes=1)
EXPECTED = {  # by pg8000, by psycopg
    "timestamp '2026-01-01 12:00' - '2026-01-01 12:30'": (30 * MINUTE, -30 * MINUTE),
    "interval '-01:30:00'": (-30 * MINUTE, -90 * MINUTE),
    "interval '1 day -00:30:00'": (timedelta(days=1, minutes=30), timedelta(days=1, minutes=-30)),
    "array[interval '-00:30:00']": ([30 * MINUTE], [-30 * MINUTE]),
    "interval '00:30:00'": (30 * MINUTE, 30 * MINUTE),
    "row(1, null, 2)": (("1", "2"), ("1", None, "2")),
    "upper(tstzrange(null, 'infinity'))::text": ("infinity", "infinity"),
}

as_described = True
data = Path(sys.argv[1]) / "data"
with server(wheel / "pginstall18" / "bin", data) as url, connect(url) as other:
    with pg8000.native.Connection("postgres", unix_sock=str(data / ".s.PGSQL.5432"), database="postgres") as connection:
        for expression, expected in EXPECTED.items():
            (seen,) = connection.run(f"select {expression}")[0]
            (right,) = other.execute(f"select {expression}").fetchone()
            print(f"{expression}: pg8000 {seen!r}, psycopg {right!r}", flush=True)
            as_described &= (seen, right) == expected
        (bounds,) = connection.run("select tstzrange(null, 'infinity')")[0]
        print(f"tstzrange(null, 'infinity'): pg8000 {bounds}")
        as_described &= bounds.upper == "nfinit"
        for style in ("iso_8601", "postgres_verbose"):
            connection.run(f"set intervalstyle = {style}")
            (seen,) = connection.run("select interval '1 day -00:30:00'")[0]
            print(f"interval '1 day -00:30:00' with intervalstyle = {style}: pg8000 {seen!r}")
            as_described &= seen == timedelta(days=1, minutes=-30)
sys.exit(not as_described)
PYTHON
"$folder/venv/bin/python" "$folder/compare.py" "$folder" || { echo "CHANGED: not as described"; exit 1; }
echo "As described: half an hour ago is half an hour ahead."
