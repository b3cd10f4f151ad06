"""The routes of programs to the primary: the socket of either server, a proxy, and a pgbouncer behind another proxy.

The proxies can fall silent (`tests.support.silence`). They acknowledge data while they are silent, so
keepalive probes are answered, and only deadlines help.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import asyncpg

from tests.support.silence import Proxy
from tests.torture.promises.nodes import PORT, USER, Node

PGBOUNCER = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")

_SETTINGS = """
[databases]
headrace = host={host} port={port} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
admin_users = {user}
pool_mode = transaction
default_pool_size = 40
max_client_conn = 500
server_login_retry = 0.2
"""


class MovableProxy(Proxy):
    """A proxy with a target that changes."""

    def lead_to(self, target: str) -> None:
        """Send new connections to this database."""
        self._target = target


class Pooler:
    """A pgbouncer in transaction mode for the primary. A failover changes its target."""

    def __init__(self, primary: Node) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port: int = found.getsockname()[1]
        self._home = Path(tempfile.mkdtemp(prefix="headrace-pooler-"))
        self._home.chmod(0o755)  # as root it runs as another user, and reads its settings again when its target changes
        self._settings = self._home / "pgbouncer.ini"
        self._users = self._home / "users.txt"
        self._users.write_text(f'"{USER}" ""\n')
        self._write(primary)
        self._log = (self._home / "pgbouncer.log").open("wb")
        self._account = ["-u", primary.owner] if os.geteuid() == 0 else []
        self.start()

    def start(self) -> None:
        assert PGBOUNCER is not None
        self._process = subprocess.Popen([PGBOUNCER, *self._account, str(self._settings)], stderr=self._log)

    def kill(self) -> None:
        """Kill it with SIGKILL. Its connections are reset, and new ones refused until `start`."""
        self._process.kill()
        self._process.wait(20)

    def _write(self, primary: Node) -> None:
        text = _SETTINGS.format(host=primary.socket, port=PORT, user=USER, own_port=self.port, users=self._users)
        self._settings.write_text(text)

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/headrace"

    async def ready(self) -> None:
        """Wait until it answers."""
        async with asyncio.timeout(20):
            while True:
                with suppress(OSError):
                    await (await self._admin()).close()
                    return
                assert self._process.poll() is None, f"pgbouncer has ended: {self._log.name}"
                await asyncio.sleep(0.02)

    async def repoint(self, primary: Node) -> None:
        """Change the server that it connects to. Its connections to the last server are closed."""
        self._write(primary)
        admin = await self._admin()
        await admin.execute("RELOAD")
        await admin.execute("RECONNECT")
        await admin.close()

    async def _admin(self) -> asyncpg.Connection[asyncpg.Record]:
        return await asyncpg.connect(f"postgresql://{USER}@127.0.0.1:{self.port}/pgbouncer", statement_cache_size=0)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._log.close()
        shutil.rmtree(self._home, ignore_errors=True)


class Routes:
    """All routes to the primary, as URLs.

    Attributes:
        direct: The socket of whichever server accepts writes.
        proxied: An address that is moved to the primary.
        pooled: A pgbouncer, behind a proxy.
        proxies: The proxies of `proxied` and `pooled`.
    """

    def __init__(self, direct: str, primary: Node) -> None:
        self.direct = direct
        self._pooler = Pooler(primary)
        self._moved = MovableProxy(primary.url)
        self.proxies: tuple[Proxy, Proxy] = (self._moved, Proxy(self._pooler.url))

    async def start(self) -> None:
        await self._pooler.ready()
        for proxy in self.proxies:
            await proxy.listen()

    async def stop(self) -> None:
        for proxy in self.proxies:
            await proxy.close()
        self._pooler.stop()

    @property
    def proxied(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.proxies[0].port}/headrace"

    @property
    def pooled(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.proxies[1].port}/headrace"

    @property
    def all(self) -> tuple[str, str, str]:
        return self.direct, self.proxied, self.pooled

    async def lead_to(self, primary: Node, *, silently: bool) -> None:
        """Change the primary of all routes. With `silently`, connections to the last one are dropped
        without a reset.
        """
        self._moved.lead_to(primary.url)
        if silently:
            self._moved.forget()
        else:
            self._moved.refuse()
            await self._moved.listen()
        await self._pooler.repoint(primary)
