"""A pgbouncer in transaction mode for the tests' server, with three server connections in total."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

PROGRAM = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")

_SETTINGS = """
[databases]
* = {target}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
admin_users = anybody
pool_mode = transaction
default_pool_size = 3
max_client_conn = 500
server_lifetime = 1
server_login_retry = 1
"""


class Pooler:
    """A running pgbouncer.

    Attributes:
        address: Its address as `host:port`.
    """

    def __init__(self, address: str, settings: Path) -> None:
        self.address = address
        self._settings = settings

    def url(self, dsn: str) -> str:
        """Return the URL of the database of this name through the pooler."""
        return f"postgresql://anybody@{self.address}{urlsplit(dsn).path}"

    async def aim(self, dsn: str) -> None:
        """Connect to the server of this URL from now on, as after a failover."""
        # The new entry has the database's name, because databases that `*` has matched are not looked up
        # again.
        named = f"[databases]\n{urlsplit(dsn).path[1:]} = {_target(dsn)}"
        self._settings.write_text(_settings(self._settings, self.address, dsn).replace("[databases]", named))
        admin = await asyncpg.connect(self.url("/pgbouncer"))
        await admin.execute("RELOAD")
        await admin.close()


@contextmanager
def pooling(dsn: str) -> Iterator[Pooler]:
    """A pgbouncer for the server of this URL. Skips the test where pgbouncer is not installed."""
    if PROGRAM is None:
        pytest.skip("pgbouncer is not installed")
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"127.0.0.1:{found.getsockname()[1]}"
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-pooler-", dir="/tmp"))
        if account := _account(dsn):  # which reads the settings again later, and can't enter pytest's own directories
            shutil.chown(directory, account[1])
        settings = Path(directory) / "pgbouncer.ini"
        settings.with_name("users.txt").write_text('"anybody" ""\n')
        settings.write_text(_settings(settings, address, dsn))
        process = stack.enter_context(
            subprocess.Popen([PROGRAM, *account, settings], stderr=subprocess.PIPE, text=True)
        )
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "process up" in line:
                break
        else:
            raise RuntimeError(f"pgbouncer did not start: {''.join(said)}")
        log = stack.enter_context(settings.with_name("pgbouncer.log").open("wb"))
        stack.enter_context(subprocess.Popen(["cat"], stdin=process.stderr, stdout=log))
        stack.callback(process.terminate)
        yield Pooler(address, settings)


def _settings(path: Path, address: str, dsn: str) -> str:
    return _SETTINGS.format(target=_target(dsn), port=address.rpartition(":")[2], users=path.with_name("users.txt"))


@pytest.fixture(scope="session")
def pooler(server_dsn: str) -> Iterator[str]:
    """The address of a pgbouncer for the tests' server, as `host:port`."""
    with pooling(server_dsn) as pooler:
        yield pooler.address


@pytest.fixture
def through(pooler: str) -> Callable[[str], str]:
    """A function that converts the URL of a database to its URL through the pooler."""

    def through(dsn: str) -> str:
        return f"postgresql://anybody@{pooler}{urlsplit(dsn).path}"

    return through


@pytest.fixture
def pooled_dsn(dsn: str, through: Callable[[str], str]) -> str:
    """The URL of the test's database through the pooler."""
    return through(dsn)


async def renew_connections(pooler_dsn: str) -> None:
    """Make the pooler replace its server connections, each as soon as it is free."""
    admin = await asyncpg.connect(urlsplit(pooler_dsn)._replace(path="/pgbouncer").geturl())
    await admin.execute("RECONNECT")
    await admin.close()


def _address(dsn: str) -> tuple[str, int, str]:
    url = urlsplit(dsn)
    named = parse_qs(url.query)
    host = named["host"][0] if "host" in named else url.hostname or "127.0.0.1"
    port = int(named["port"][0]) if "port" in named else url.port or 5432
    return host, port, url.username or "postgres"


def _target(dsn: str) -> str:
    host, port, user = _address(dsn)
    password = urlsplit(dsn).password
    return f"host={host} port={port} user={user}" + (f" password={password}" if password else "")


def _account(dsn: str) -> list[str]:
    """Return pgbouncer's user option. As root it must run as another user, which may enter the directory
    of the server's socket.
    """
    if os.geteuid() != 0:
        return []
    host, _, _ = _address(dsn)
    return ["-u", pwd.getpwuid(Path(host).stat().st_uid).pw_name if host.startswith("/") else "nobody"]
