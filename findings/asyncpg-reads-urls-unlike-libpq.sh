#!/usr/bin/env bash
# asyncpg 0.32.0: four valid connection strings mean another thing than in libpq (psycopg 3.3.9, libpq 18), or nothing.
#
# Seen:     `?user=a+b` signs in as "a b", where libpq signs in as "a+b": a plus sign is itself in a URI (RFC 3986), and a space
#           only in forms. A `%` in a value of a service file raises configparser.InterpolationSyntaxError, and libpq takes
#           it as it is. A service that no file defines connects to the default place, where libpq raises an error.
#           `sslrootcert=system` (since libpq 16) raises FileNotFoundError for a file of that name.
# Expected: what libpq does, since asyncpg reads its URIs and its service files. A service with a typing error must not lead
#           to another database.
#
# Needs Python 3.11 or newer and pip, on Linux. Exits with 0 while the behaviour is as described.
. "$(dirname "$0")/postgres.sh"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'asyncpg==0.32.0'

cat > "$folder/compare.py" <<'PYTHON'
import asyncio, os, sys
from pathlib import Path

import asyncpg
import psycopg

from servers import connect, servers


def with_asyncpg(dsn):
    async def user():
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval("select current_user")
        finally:
            await connection.close()

    return asyncio.run(user())


def with_libpq(dsn):
    with psycopg.connect(dsn) as connection:
        return connection.execute("select current_user").fetchone()[0]


def outcome(sign_in, dsn):
    """The user, or the kind of error."""
    try:
        return sign_in(dsn)
    except Exception as error:
        return type(error).__name__


url = next(found := servers())
connect(url).execute('create role "a b" login; create role "a+b" login').connection.close()
host = dict(part.split("=") for part in url.split())["host"]
services = Path(sys.argv[1]) / "services"
services.write_text(f"[shop]\nhost={host}\nuser=postgres\ndbname=postgres\npassword=50%off\n")
os.environ |= {"PGSERVICEFILE": str(services), "PGHOST": host, "PGUSER": "postgres", "PGDATABASE": "postgres"}

EXPECTED = {
    f"postgresql:///postgres?host={host}&user=a+b": ("a b", "a+b"),
    "postgresql:///?service=shop": ("InterpolationSyntaxError", "postgres"),
    "postgresql:///?service=shpo": ("postgres", "OperationalError"),
    f"postgresql:///postgres?host={host}&user=postgres&sslmode=verify-full&sslrootcert=system": ("FileNotFoundError", "postgres"),
}
as_described = True
for dsn, expected in EXPECTED.items():
    seen = outcome(with_asyncpg, dsn), outcome(with_libpq, dsn)
    print(f"{dsn.replace(host, 'HOST')}: asyncpg {seen[0]}, libpq {seen[1]}", flush=True)
    as_described &= seen == expected
found.close()
sys.exit(not as_described)
PYTHON
"$folder/venv/bin/python" "$folder/compare.py" "$folder" || { echo "CHANGED: not as described"; exit 1; }
echo "As described: asyncpg reads four connection strings unlike libpq."
