#!/usr/bin/env bash
# connectorx 0.4.6 (also behind polars.read_database_uri): with the csv protocol, rows that are NULL vanish, and digits are lost.
#
# Seen:     a query with one column returns no row for each NULL, of any type: 2 of the 3 rows of (1), (null), (3). An empty
#           text becomes NULL, and the elements of a text array are torn at their commas and keep their quotes. A
#           numeric(30, 15) is rounded to 10 decimals with every protocol, 0.000000000001 to zero. None of these is an error.
# Expected: the rows that the protocols binary (the default) and cursor return, and the decimals that the column has.
# Why:      COPY writes NULL as nothing, so a row of one NULL is an empty line, which a reader of CSV skips. The same nothing
#           stands for an empty text once the quotes are gone. The scale of decimals is a constant.
#
# Needs Python 3.11 or newer and pip, on Linux. Exits with 0 while the behaviour is as described.
. "$(dirname "$0")/postgres.sh"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'connectorx==0.4.6' 'pyarrow==26.0.1' 'polars==2.1.0'

cat > "$folder/compare.py" <<'PYTHON'
import socket
import sys
from decimal import Decimal
from pathlib import Path

import connectorx
import polars
from servers import connect, server, wheel

EXPECTED = {  # with csv, with binary and cursor
    "select v from (values (1), (null), (3)) as t(v)": ([1, 3], [1, None, 3]),
    "select v from (values (true), (null)) as t(v)": ([True], [True, None]),
    "select v, 1 as w from (values (1), (null)) as t(v)": ([1, None], [1, None]),
    "select v from (values ('a'), ('')) as t(v)": (["a", None], ["a", ""]),
    "select array['a,b', 'c'] as v": ([['"a', 'b"', "c"]], [["a,b", "c"]]),
    "select 0.000000000001::numeric(30, 15) as v": ([Decimal("0E-10")], [Decimal("0E-10")]),
    "select 1.123456789012345::numeric(30, 15) as v": ([Decimal("1.1234567890")], [Decimal("1.1234567890")]),
}

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
as_described = True
with server(wheel / "pginstall18" / "bin", Path(sys.argv[1]) / "data", "listen_addresses=127.0.0.1", f"port={port}") as url:
    connect(f"{url} port={port}").close()
    address = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    for query, expected in EXPECTED.items():
        seen = {
            protocol: connectorx.read_sql(address, query, return_type="arrow", protocol=protocol).column("v").to_pylist()
            for protocol in ("csv", "binary", "cursor")
        }
        print(f"{query}: {seen}", flush=True)
        as_described &= (seen["csv"], seen["binary"]) == expected and seen["cursor"] == seen["binary"]
    (query, (lossy, _)), *_ = EXPECTED.items()
    seen = polars.read_database_uri(query, address, protocol="csv").to_series().to_list()
    print(f"{query} with polars and csv: {seen}")
    as_described &= seen == lossy
sys.exit(not as_described)
PYTHON
"$folder/venv/bin/python" "$folder/compare.py" "$folder" || { echo "CHANGED: not as described"; exit 1; }
echo "As described: a row of NULL is no row."
