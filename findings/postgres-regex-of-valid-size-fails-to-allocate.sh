#!/usr/bin/env bash
# PostgreSQL 16.14 and 18.4: a valid regular expression of 14 characters fails with an internal error.
#
# Seen:     `select 'b a' ~ '(\M| a){0,255}'` raises XX000 "invalid memory alloc request size 1082697836" after half a second,
#           with a process of 50 MB. With {0,100} it is true. Debian's 19~rc1 raises the same, and Debian's 15.18 returns true
#           for both.
# Expected: true, or else 2201B "regular expression is too complex", as for other expressions that need too many states.
#           A program that recognises invalid patterns by their error code takes XX000 for a broken server.
#
# Needs Python 3.11 or newer and pip, on Linux. Exits with 0 while the behaviour is as described.
. "$(dirname "$0")/postgres.sh"

cat > "$folder/compare.py" <<'PYTHON'
import sys

import psycopg
from servers import connect, servers


def matched(connection, pattern):
    """Whether the pattern matches, or the code and the text of the error."""
    try:
        return connection.execute("select 'b a' ~ %s", (pattern,)).fetchone()[0]
    except psycopg.Error as error:
        return error.sqlstate, str(error)


as_described = True
for url in servers():
    with connect(url) as connection:
        (version,) = connection.execute("show server_version").fetchone()
        for pattern in (r"(\M| a){0,255}", r"(\M| a){0,100}", r"(\y){0,255}"):
            found = matched(connection, pattern)
            print(f"PostgreSQL {version}, {pattern}: {found}", flush=True)
            if pattern == r"(\y){0,255}":  # what an expression with too many states gets
                as_described &= isinstance(found, tuple) and found[0] == "2201B"
            elif pattern.endswith("255}"):
                as_described &= isinstance(found, tuple) and found[0] == "XX000" and "invalid memory alloc" in found[1]
            else:
                as_described &= found is True
sys.exit(not as_described)
PYTHON

"$folder/venv/bin/python" "$folder/compare.py" "$folder" || { echo "CHANGED: not as described"; exit 1; }
echo "As described: an internal error takes the place of 'too complex'."
