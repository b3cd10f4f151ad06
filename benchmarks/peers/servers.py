"""The servers of a run: a fresh database on Postgres, or a fresh Redis or NATS."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from benchmarks.harness import with_database
from benchmarks.peers.catalog import Peer
from benchmarks.peers.children import ROOT, PeerFailed
from benchmarks.peers.installing import program
from benchmarks.peers.readings import Stored
from benchmarks.processor_time import postmaster

STARTING = 10.0
"""Seconds for a server to start."""

DATA = ROOT / ".bench" / "data"
"""Beside the packages, so on a real disk. A temporary directory may be in memory, where a flush costs nothing."""


class Place(msgspec.Struct):
    """The servers of a run.

    Attributes:
        url: what the peer connects to.
        database: the fresh database, for what only Postgres has. None for a peer that needs none.
        dsn: its URL.
        processes: the ids of the servers that run on this machine.
    """

    url: str
    database: psycopg.Connection[Any] | None
    dsn: str
    processes: list[int]

    def written(self) -> Stored | None:
        return None if self.database is None else Stored.of(self.database)


class Snapshot:
    """Another session whose snapshot is held, as that of a long report is."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute("begin isolation level repeatable read")
        self._connection.execute("select count(*) from pg_class")

    def close(self) -> None:
        self._connection.close()


@contextmanager
def place(peer: Peer, postgres: str, *, template: str | None, effects: bool) -> Iterator[Place]:
    """The servers of a run, removed at the end.

    Args:
        postgres: the URL of the Postgres server.
        template: the database that the fresh one is a copy of.
        effects: whether handlers write rows into a table.
    """
    if peer.server == "postgres":
        with _database(postgres, template) as (dsn, connection):
            yield _place(dsn, dsn, connection, [])
    else:
        with _own_server(peer) as (url, process):
            if not effects:
                yield Place(url, None, "", [process])
                return
            with _database(postgres) as (dsn, connection):
                yield _place(url, dsn, connection, [process])


def _place(url: str, dsn: str, connection: psycopg.Connection[Any], processes: list[int]) -> Place:
    server = postmaster(connection.info.backend_pid)
    return Place(url, connection, dsn, processes if server is None else [*processes, server])


class Templates:
    """Databases in which a peer is set up, kept for further runs, since some take seconds for that."""

    def __init__(self, postgres: str) -> None:
        self.postgres = postgres
        self._names: dict[Hashable, str] = {}

    def name(self, key: Hashable, set_up: Callable[[str], None]) -> str:
        """The name of a peer's database.

        Args:
            key: the peer, and what its setup depends on.
            set_up: sets the peer up in the database with this URL, and closes its connections.
        """
        if key not in self._names:
            name = _created(self.postgres)
            try:
                set_up(with_database(self.postgres, name))
            except BaseException:
                _drop(self.postgres, name)
                raise
            self._names[key] = name
        return self._names[key]

    def close(self) -> None:
        for name in self._names.values():
            _drop(self.postgres, name)


@contextmanager
def _database(server: str, template: str | None = None) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    name = _created(server, template)
    try:
        dsn = with_database(server, name)
        with closing(psycopg.connect(dsn, autocommit=True)) as connection:
            connection.execute("create table effects (number bigint not null)")
            yield dsn, connection
    finally:
        _drop(server, name)


def _created(server: str, template: str | None = None) -> str:
    name = f"bench_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as administrator:
        administrator.execute(f"create database {name} template {template or 'template1'}")
    return name


def _drop(server: str, name: str) -> None:
    with psycopg.connect(server, autocommit=True) as administrator:
        administrator.execute(f"drop database if exists {name} with (force)")


@contextmanager
def _own_server(peer: Peer) -> Iterator[tuple[str, int]]:
    data = DATA / f"{peer.server}-{secrets.token_hex(4)}"
    data.mkdir(parents=True)
    port = free_port()
    try:
        with _running(_command(peer, data, port), port) as process:
            yield f"{peer.server}://127.0.0.1:{port}", process.pid
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _command(peer: Peer, data: Path, port: int) -> Sequence[str | Path]:
    """The server as its documentation recommends it where data must last, or with each write flushed."""
    if peer.server == "redis":
        redis = shutil.which("redis-server")
        if redis is None:
            raise PeerFailed("redis-server is not on the path: apt-get install redis-server")
        return [
            redis,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            data,
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always" if peer.flush else "everysec",
        ]
    settings = data / "nats.conf"
    settings.write_text(
        f"host: 127.0.0.1\nport: {port}\nmax_payload: 1MB\n"
        f'jetstream {{ store_dir: "{data}"{", sync_interval: always" if peer.flush else ""} }}\n'
    )
    return [program(peer, "nats-server"), "--config", settings]


@contextmanager
def _running(command: Sequence[str | Path], port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        end = time.monotonic() + STARTING
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > end:
                raise PeerFailed(f"{Path(command[0]).name} did not start")
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(0.2)
        return client.connect_ex(("127.0.0.1", port)) == 0
