"""A primary and an asynchronous standby. Tests crash them, fail over, and make the old primary a standby again."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

from headrace.embedded.binaries import Installation, find_installation
from headrace.embedded.os_user import OsUser, os_user_for
from headrace.embedded.program_copies import usable_by

USER = "headrace"
PORT = 5432

# A crash of the server alone loses nothing that was written, so nothing waits for the disk. The retained
# WAL replaces a replication slot, which would have to be created again after each failover.
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "128MB",
    "max_connections": "200",
    "max_wal_senders": "10",
    "wal_keep_size": "1GB",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "5min",
    "hot_standby": "on",
    "wal_receiver_status_interval": "1s",
    "wal_sender_timeout": "10s",
    "wal_retrieve_retry_interval": "200ms",
    "restart_after_crash": "on",
}


class Node:
    """One server with a socket directory that stays the same when its data is replaced.

    Args:
        settings: Settings of the server, besides those of all nodes.
        environment: Environment variables of its programs.

    Attributes:
        socket: The directory of its socket.
    """

    def __init__(self, name: str, settings: Mapping[str, str] = {}, *, environment: Mapping[str, str] = {}) -> None:
        self.name = name
        self._environment = [f"{name}={value}" for name, value in environment.items()]
        self._settings = {**_SETTINGS, **settings}
        self.socket = Path(tempfile.mkdtemp(prefix=f"headrace-{name}-"))
        self._account: OsUser = os_user_for(self.socket)
        self._programs: Installation = usable_by(self._account, find_installation())
        self._account.own(self.socket)
        self.socket.chmod(0o700)
        self._data = self.socket / "data"

    @property
    def owner(self) -> str:
        """The operating system's user that the server runs as."""
        return self._account.name

    @property
    def path(self) -> str:
        """The path of the socket itself."""
        return str(self.socket / f".s.PGSQL.{PORT}")

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/headrace?host={quote(str(self.socket), safe='/')}&port={PORT}"

    # --- creation

    def make(self) -> None:
        """Create a primary with an empty database."""
        self._run("initdb", "-D", self._data, "-U", USER, "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self._configure()
        self.start()
        self._run("createdb", "-h", self.socket, "-p", PORT, "-U", USER, "headrace")

    def follow(self, primary: Node) -> None:
        """Delete all data, and become a running standby of `primary`."""
        self.stop("immediate")
        shutil.rmtree(self._data, ignore_errors=True)
        self._run("pg_basebackup", "-D", self._data, "-d", self._source(primary), "-R", "-X", "stream", "-c", "fast", "--no-sync")  # fmt: skip
        self._configure(primary_conninfo=self._source(primary))
        self.start()

    def _source(self, primary: Node) -> str:
        return f"host={primary.socket} port={PORT} user={USER} application_name=standby"

    def _configure(self, **more: str) -> None:
        settings = {**self._settings, "unix_socket_directories": str(self.socket), "port": str(PORT), **more}
        self._account.write(self._data / "postgresql.auto.conf", "".join(f"{n} = '{v}'\n" for n, v in settings.items()))

    # --- running

    def start(self) -> None:
        with (self.socket / "log").open("ab") as log:
            self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", "start", log=log)

    def stop(self, mode: str) -> None:
        """Stop the server if it runs."""
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", "-m", mode, "stop")

    def crash(self) -> None:
        """Crash the server and restart it. Returns when it accepts connections."""
        self.stop("immediate")
        self.start()

    def cut_off(self) -> None:
        """Stop receiving WAL. The standby falls behind from now on."""
        self._configure(primary_conninfo="")
        os.kill(self._pid(), signal.SIGHUP)

    def promote(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", "promote")

    def _pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().splitlines()[0])

    def destroy(self) -> None:
        self.stop("immediate")
        shutil.rmtree(self.socket, ignore_errors=True)

    def log(self) -> str:
        """Return the server's log."""
        return (self.socket / "log").read_text(errors="replace")

    def _run(self, program: str, *options: object, log: IO[bytes] | None = None) -> None:
        command = ["/usr/bin/env", *self._environment, str(self._programs.program(program)), *map(str, options)]
        answer = self._account.run(command, log=log)
        assert answer.returncode == 0, f"{program}: {answer.stdout or self.log()[-3000:]}"


@dataclass
class Failover:
    """One failover, in seconds of the machine's clock, which the servers share.

    Attributes:
        cut_at: When the standby stopped receiving.
        stopped_at: When the old primary was gone. It answered nothing after that.
        kept_until: The commit time of the last transaction that the standby had. Every lost commit was
            answered later.
        promoted_at: When the standby accepted writes.
    """

    cut_at: float
    stopped_at: float
    kept_until: float
    promoted_at: float


class Pair:
    """A primary and its standby, which change places."""

    def __init__(self) -> None:
        self.primary = Node("a")
        self.standby = Node("b")

    def make(self) -> None:
        self.primary.make()
        self.standby.follow(self.primary)

    def either(self) -> str:
        """The URL of whichever server accepts writes."""
        hosts = f"{self.primary.socket},{self.standby.socket}"
        return f"postgresql://{USER}@/headrace?host={hosts}&port={PORT},{PORT}&target_session_attrs=read-write"

    def swap(self) -> None:
        self.primary, self.standby = self.standby, self.primary

    def destroy(self) -> None:
        for node in (self.primary, self.standby):
            node.destroy()
