"""Postgres servers that belong to one test, which can be stopped, crashed and failed over, and their standbys."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from headrace.embedded import EmbeddedPostgres
from headrace.embedded.binaries import Installation, find_installation
from headrace.embedded.os_user import OsUser, os_user_for
from headrace.embedded.program_copies import usable_by
from tests.support.programs import installations

# Nothing has to survive a power cut. A crash of the server alone loses nothing that was written.
QUICK = {"fsync": "off", "shared_buffers": "32MB", "wal_sender_timeout": "10s"}


def client_programs(*names: str, major: int | None = None) -> Installation:
    """Return an installation that has the client programs for a server.

    Some packages hold only what runs a server. The clients of the next newer version work with it, too.

    Args:
        names: such as `pg_basebackup`. The test is skipped if no installation has them all.
        major: the server's version. The default is that of the programs in use.
    """
    used = find_installation()
    major = major or used.major
    newer = sorted((one for one in (used, *installations()) if one.major >= major), key=lambda one: one.major)
    for found in newer:
        if all(found.program(name).exists() for name in names):
            return found
    pytest.skip(f"NOT TESTED ON POSTGRESQL {major} HERE: no programs {', '.join(names)} of this version or a newer one")


@contextmanager
def cluster(directory: Path, *, port: int | None = None, **settings: str) -> Iterator[EmbeddedPostgres]:
    """A running server, removed at the end."""
    postgres = EmbeddedPostgres(directory, port=port, settings={**QUICK, **settings})
    handle = postgres.acquire()
    try:
        yield postgres
    finally:
        handle.release()
        postgres.destroy()


class Standby:
    """A physical standby of a server, on its own socket, made from a base backup.

    Args:
        primary: A running server that isn't open to TCP.
    """

    def __init__(self, primary: EmbeddedPostgres) -> None:
        query = parse_qs(urlsplit(primary.url()).query)
        self._user = urlsplit(primary.url()).username or ""
        self._primary = {"host": query["host"][0], "port": query.get("port", ["5432"])[0], "user": self._user}
        self._account: OsUser = os_user_for(Path(self._primary["host"]))
        self._programs: Installation = usable_by(self._account, find_installation())
        self._backups: Installation = usable_by(self._account, client_programs("pg_basebackup"))
        self._home = Path(tempfile.mkdtemp(prefix="headrace-standby-"))
        self._account.own(self._home)
        self._home.chmod(0o700)
        self._data = self._home / "data"

    def make(self, **settings: str) -> None:
        """Take the base backup, with a physical slot `standby` on the primary."""
        conninfo = " ".join(f"{name}={value}" for name, value in {**self._primary, "dbname": "headrace"}.items())
        self._run(self._backups, "pg_basebackup", "-D", self._data, "-d", conninfo, "-R", "-C", "-S", "standby", "-X", "stream", "-c", "fast")  # fmt: skip
        own = {
            "unix_socket_directories": str(self._home),
            "primary_conninfo": conninfo,
            "hot_standby_feedback": "on",
            **settings,
        }
        path = self._data / "postgresql.auto.conf"
        self._account.write(path, path.read_text() + "".join(f"{name} = '{value}'\n" for name, value in own.items()))

    def start(self) -> None:
        with (self._home / "log").open("ab") as log:
            self._run(self._programs, "pg_ctl", "-D", self._data, "-w", "-t", "60", "start", log=log)

    def promote(self) -> None:
        self._run(self._programs, "pg_ctl", "-D", self._data, "-w", "-t", "60", "promote")

    def stop(self, mode: str = "fast") -> None:
        self._run(self._programs, "pg_ctl", "-D", self._data, "-w", "-t", "60", "-m", mode, "stop")

    def destroy(self) -> None:
        """Stop the standby if it runs, and remove its data."""
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def url(self) -> str:
        return (
            f"postgresql://{self._user}@/headrace?host={quote(str(self._home), safe='/')}&port={self._primary['port']}"
        )

    def either(self) -> str:
        """Return the libpq URL of whichever server accepts writes. An application that follows a
        failover uses such a URL.
        """
        hosts, port = f"{self._primary['host']},{self._home}", self._primary["port"]
        return f"postgresql://{self._user}@/headrace?host={hosts}&port={port},{port}&target_session_attrs=read-write"

    def log(self) -> str:
        """Return the server's log."""
        return (self._home / "log").read_text(errors="replace")

    def _run(self, programs: Installation, program: str, *options: object, log: object = None) -> None:
        command = [programs.program(program), *(str(option) for option in options)]
        answer = self._account.run(command, log=log)  # type: ignore[arg-type]
        assert answer.returncode == 0, f"{program}: {answer.stdout or self.log()}"


@contextmanager
def standby(primary: EmbeddedPostgres, **settings: str) -> Iterator[Standby]:
    """A running standby, removed at the end."""
    made = Standby(primary)
    try:
        made.make(**settings)
        made.start()
        yield made
    finally:
        made.destroy()
