"""Make a cluster (Postgres's word for a data directory) and write its settings."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from headrace.embedded.binaries import Installation
from headrace.embedded.errors import output_error
from headrace.embedded.os_user import OsUser
from headrace.embedded.paths import ServerDirectory
from headrace.model.errors import ConfigurationError, EmbeddedPostgresError

DATABASE = "headrace"
ROLE = "headrace"
SOCKET_PORT = 5432
"""The port in the socket's file name when no TCP port is set."""

_SETTINGS_FILE = "headrace.conf"
_PASSWORD_FILE = "headrace.password"
_INCLUDE = f"""
# Headrace's settings, rewritten at every start, and then yours, which take precedence.
include '{_SETTINGS_FILE}'
include_if_exists 'custom.conf'
"""

_LIKE_A_SETTING = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?", re.IGNORECASE)


def make_cluster(server_dir: ServerDirectory, os_user: OsUser, installation: Installation, home: Path) -> None:
    """Make the cluster with its database. This takes about a second.

    It is made under a temporary name and then renamed, so that a cluster under its final name is
    always complete. One that was killed halfway is made again. The caller holds the start lock.
    Raises `EmbeddedPostgresError`, leaving nothing behind.
    """
    _clean_up(server_dir)
    # A unique name: the initdb of a killed start may still be writing to another one.
    aside = server_dir.unfinished / secrets.token_hex(4)
    aside.parent.mkdir(exist_ok=True)
    aside.parent.chmod(0o711)
    aside.mkdir(mode=0o700)
    try:
        os_user.own(aside)
        password = aside / "password"
        os_user.write(password, secrets.token_urlsafe(24) + "\n")
        _initdb(aside / "cluster", password, os_user, installation, home)
        _create_database(aside / "cluster", os_user, installation, home)
        password.rename(aside / "cluster" / _PASSWORD_FILE)
        (aside / "cluster").rename(server_dir.cluster)
        _sync(server_dir.path)
    finally:
        _clean_up(server_dir)


def _clean_up(server_dir: ServerDirectory) -> None:
    shutil.rmtree(server_dir.unfinished, ignore_errors=True)


def _initdb(cluster: Path, password: Path, os_user: OsUser, installation: Installation, home: Path) -> None:
    # Local connections need no password, since the socket is in a directory that only the server's
    # user and root can enter. A TCP port is open to every user of the machine, so it requires the
    # password.
    answer = os_user.run(
        [
            installation.program("initdb"),
            *("-D", cluster, "-U", ROLE, "--pwfile", password),
            *("--auth-local=trust", "--auth-host=scram-sha-256"),
            *("-E", "UTF8", *_locale(installation), "--no-instructions"),
        ]
    )
    if answer.returncode != 0:
        raise EmbeddedPostgresError(output_error(answer.stdout, home=home, port=None, action="make its data directory"))


def _locale(installation: Installation) -> list[str]:
    # The same sort order and upper case on every machine, whatever locales it has.
    if installation.major >= 17:
        return ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return ["--locale=C"]


def _create_database(cluster: Path, os_user: OsUser, installation: Installation, home: Path) -> None:
    """Create the database in single-user mode, which needs no running server and admits no other client."""
    configuration = cluster / "postgresql.conf"
    os_user.write(configuration, configuration.read_text() + _INCLUDE)
    os_user.write(cluster / _SETTINGS_FILE, "")
    os_user.write(cluster / "custom.conf", "# Your own settings; they win over Headrace's.\n")
    # In this mode an error in the SQL does not set the exit code. It only shows in the output.
    answer = os_user.run(
        [installation.program("postgres"), "--single", "-D", cluster, "-c", "log_checkpoints=off", "template1"],
        stdin=f"create database {DATABASE}\n",
    )
    if answer.returncode != 0 or re.search(r"\b(ERROR|FATAL|PANIC):", answer.stdout):
        raise EmbeddedPostgresError(output_error(answer.stdout, home=home, port=None, action="create its database"))


def write_settings(
    server_dir: ServerDirectory, os_user: OsUser, sockets: Path, port: int | None, settings: Mapping[str, str]
) -> None:
    """Write the managed settings file, if its contents change.

    Raises `ConfigurationError` for an invalid setting name.
    """
    lines = [f"{name} = {_quoted(value)}" for name, value in _merged(sockets, port, settings).items()]
    text = "# Written by Headrace at every start. Put your own settings into custom.conf.\n"
    text += "\n".join(lines) + "\n"
    path = server_dir.cluster / _SETTINGS_FILE
    if not path.is_file() or path.read_text() != text:
        os_user.write(path, text)


def password_of(server_dir: ServerDirectory) -> str | None:
    """The generated password for TCP. None while there is no cluster."""
    try:
        return (server_dir.cluster / _PASSWORD_FILE).read_text().strip()
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
            f"{name!r} is not the name of a Postgres setting. A name looks like work_mem or auto_explain.log_analyze."
        )
    return name.lower()


def _quoted(value: str) -> str:
    if "\n" in value or "\0" in value:
        raise ConfigurationError(
            f"The value {value!r} of a Postgres setting has a line break or a NUL. It must be one line."
        )
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
