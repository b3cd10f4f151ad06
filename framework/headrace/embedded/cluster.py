"""Make a cluster (Postgres's word for a data directory) and write its settings."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from headrace.embedded.account import Account
from headrace.embedded.binaries import Installation
from headrace.embedded.errors import about_output
from headrace.embedded.paths import Seat
from headrace.model.errors import ConfigurationError, EmbeddedPostgresError

DATABASE = "headrace"
ROLE = "headrace"
SOCKET_PORT = 5432
"""The port in the socket's file name when no TCP port is set."""

_SETTINGS_FILE = "headrace.conf"
_PASSWORD_FILE = "headrace.password"
_INCLUDE = f"""
# Headrace's settings, written anew at every start, and after them yours, which win.
include '{_SETTINGS_FILE}'
include_if_exists 'custom.conf'
"""

_LIKE_A_SETTING = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?", re.IGNORECASE)


def make_cluster(seat: Seat, account: Account, installation: Installation, home: Path) -> None:
    """Make the cluster with its database. This takes about a second.

    It is made under a temporary name and then renamed, so that a cluster under its final name is
    always complete. One that was killed halfway is made again. The caller holds the start lock.
    Raises `EmbeddedPostgresError`, leaving nothing behind.
    """
    _clean_up(seat)
    # A unique name: the initdb of a killed start may still be writing to another one.
    aside = seat.unfinished / secrets.token_hex(4)
    aside.parent.mkdir(exist_ok=True)
    aside.parent.chmod(0o711)
    aside.mkdir(mode=0o700)
    try:
        account.own(aside)
        password = aside / "password"
        account.write(password, secrets.token_urlsafe(24) + "\n")
        _initdb(aside / "cluster", password, account, installation, home)
        _create_database(aside / "cluster", account, installation, home)
        password.rename(aside / "cluster" / _PASSWORD_FILE)
        (aside / "cluster").rename(seat.cluster)
        _sync(seat.path)
    finally:
        _clean_up(seat)


def _clean_up(seat: Seat) -> None:
    shutil.rmtree(seat.unfinished, ignore_errors=True)


def _initdb(cluster: Path, password: Path, account: Account, installation: Installation, home: Path) -> None:
    # Local connections need no password, since the socket is in a directory that only the server's
    # user and root can enter. A TCP port is open to every user of the machine, so it requires the
    # password.
    answer = account.run(
        [
            installation.program("initdb"),
            *("-D", cluster, "-U", ROLE, "--pwfile", password),
            *("--auth-local=trust", "--auth-host=scram-sha-256"),
            *("-E", "UTF8", *_locale(installation), "--no-instructions"),
        ]
    )
    if answer.returncode != 0:
        raise EmbeddedPostgresError(about_output(answer.stdout, home=home, port=None, doing="make its data directory"))


def _locale(installation: Installation) -> list[str]:
    # The same sort order and upper case on every machine, whatever locales it has.
    if installation.major >= 17:
        return ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return ["--locale=C"]


def _create_database(cluster: Path, account: Account, installation: Installation, home: Path) -> None:
    """Create the database in single-user mode, which needs no running server and admits no other client."""
    configuration = cluster / "postgresql.conf"
    account.write(configuration, configuration.read_text() + _INCLUDE)
    account.write(cluster / _SETTINGS_FILE, "")
    account.write(cluster / "custom.conf", "# Your own settings; they win over Headrace's.\n")
    # In this mode an error in the SQL does not set the exit code. It only shows in the output.
    answer = account.run(
        [
            installation.program("postgres"),
            "--single",
            "-D",
            cluster,
            "-c",
            "log_checkpoints=off",
            "template1",
        ],
        stdin=f"create database {DATABASE}\n",
    )
    if answer.returncode != 0 or re.search(r"\b(ERROR|FATAL|PANIC):", answer.stdout):
        raise EmbeddedPostgresError(about_output(answer.stdout, home=home, port=None, doing="create its database"))


def write_settings(seat: Seat, account: Account, sockets: Path, port: int | None, settings: Mapping[str, str]) -> None:
    """Write the managed settings file, if its contents change.

    Raises `ConfigurationError` for an invalid setting name.
    """
    lines = [f"{name} = {_quoted(value)}" for name, value in _merged(sockets, port, settings).items()]
    text = "# Written by Headrace at every start. Put your own settings into custom.conf.\n"
    text += "\n".join(lines) + "\n"
    path = seat.cluster / _SETTINGS_FILE
    if not path.is_file() or path.read_text() != text:
        account.write(path, text)


def password_of(seat: Seat) -> str | None:
    """The generated password for TCP. None while there is no cluster."""
    try:
        return (seat.cluster / _PASSWORD_FILE).read_text().strip()
    except FileNotFoundError:
        return None


def _merged(sockets: Path, port: int | None, settings: Mapping[str, str]) -> dict[str, str]:
    return _defaults(sockets, port) | {_checked(name): value for name, value in settings.items()}


def _defaults(sockets: Path, port: int | None) -> dict[str, str]:
    return {
        "listen_addresses": "127.0.0.1" if port else "",
        "port": str(port or SOCKET_PORT),
        "unix_socket_directories": str(sockets),
        "unix_socket_permissions": "0700",
        "cluster_name": "headrace",
        # Change capture reads the WAL.
        "wal_level": "logical",
        "max_replication_slots": "10",
        "max_wal_senders": "10",
        "max_connections": "200",
        "shared_buffers": _shared_buffers(),
        # Fewer and larger checkpoints: a queue writes much, and reads what it has just written.
        "max_wal_size": "2GB",
        "checkpoint_timeout": "15min",
        "wal_compression": "off",
        # No commit is lost.
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        # Compilation costs more than any of our short statements.
        "jit": "off",
        # Small hot tables fill with dead rows quickly, so vacuum checks them often.
        "autovacuum": "on",
        "autovacuum_naptime": "10s",
        # The role has the same name as our schema, so "$user" would put your tables and functions
        # into it.
        "search_path": "public",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "lc_messages": "C",
        "logging_collector": "off",
        "log_destination": "stderr",
        "log_checkpoints": "off",
        "log_line_prefix": "%m [%p] ",
    }


def _shared_buffers() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return "256MB" if memory >= 4 * 1024**3 else "128MB"


def _checked(name: str) -> str:
    if not _LIKE_A_SETTING.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not the name of a Postgres setting; a name looks like work_mem or auto_explain.log_analyze."
        )
    return name.lower()


def _quoted(value: str) -> str:
    if "\n" in value or "\0" in value:
        raise ConfigurationError(f"The value {value!r} of a Postgres setting must be one line of text.")
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
