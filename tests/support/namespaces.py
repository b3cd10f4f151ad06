"""A network that belongs to one test and can lose packets. It is a Linux network namespace, connected to this one by
a pair of virtual devices.

Needs root and `ip`. A Postgres server of this namespace is reached from there by TCP. Its Unix socket
works regardless of the network.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import asyncpg
import pytest

from tests.support import servers
from tests.support.clusters import cluster

IP = shutil.which("ip", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")

_CLONE_NEWNET = 0x40000000


class Network:
    """The two ends of the network: `here` is an address of this namespace, and `there` is the address
    from which `run` runs code.
    """

    def __init__(self) -> None:
        self._name = f"hr{secrets.token_hex(4)}"
        number = secrets.randbelow(250) + 1
        self._subnet = f"10.231.{number}"
        self.here, self.there = f"{self._subnet}.1", f"{self._subnet}.2"
        # Commands run in a thread that stays in this namespace, because a child process starts in the
        # namespace of its parent thread.
        self._hands = ThreadPoolExecutor(1)
        self._hands.submit(_ip, "link", "show", "lo").result()

    def make(self) -> None:
        near, far = f"{self._name}a", f"{self._name}b"
        self._ip("netns", "add", self._name)
        self._ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self._name)
        self._ip("addr", "add", f"{self.here}/24", "dev", near)
        self._ip("link", "set", near, "up")
        self._inside("addr", "add", f"{self.there}/24", "dev", far)
        self._inside("link", "set", far, "up")
        self._inside("link", "set", "lo", "up")

    def destroy(self) -> None:
        for command in (("link", "del", f"{self._name}a"), ("netns", "del", self._name)):
            with suppress(subprocess.CalledProcessError):
                self._ip(*command)
        self._hands.shutdown()

    def cut(self) -> None:
        """Drop every packet, in both directions."""
        self._ip("link", "set", f"{self._name}a", "down")

    def heal(self) -> None:
        self._ip("link", "set", f"{self._name}a", "up")

    def move(self) -> None:
        """Give the other end a new address and remove the old one. Packets of old connections are lost,
        and new connections work.
        """
        far, old = f"{self._name}b", self.there
        self.there = f"{self._subnet}.3"
        self._inside("addr", "del", f"{old}/24", "dev", far)
        self._inside("addr", "add", f"{self.there}/24", "dev", far)

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` in the other namespace, in its own thread and event loop. Raises what `work` raises."""
        failures: list[BaseException] = []

        def inside() -> None:
            try:
                with Path(f"/run/netns/{self._name}").open() as file:
                    libc = ctypes.CDLL(None, use_errno=True)
                    if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), "setns")
                asyncio.run(work())
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    def _inside(self, *arguments: str) -> None:
        self._ip("-n", self._name, *arguments)

    def _ip(self, *arguments: str) -> None:
        self._hands.submit(_ip, *arguments).result()


@contextmanager
def network() -> Iterator[Network]:
    """A network that belongs to one test, removed at the end. Skips the test where namespaces are not available."""
    if sys.platform != "linux" or os.geteuid() != 0 or IP is None:
        pytest.skip("SILENCE OF A NETWORK IS NOT TESTED HERE: network namespaces need Linux, root and iproute2")
    made = Network()
    try:
        try:
            made.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"SILENCE OF A NETWORK IS NOT TESTED HERE: no namespace can be made ({error.stderr.strip()})")
        yield made
    finally:
        made.destroy()


class Server(NamedTuple):
    """A server that is reached through a network at `url`, and independently of the network at `direct`."""

    url: str
    direct: str


@contextmanager
def reachable(directory: Path, there: Network) -> Iterator[Server]:
    """A server that belongs to one test and listens at `there.here`."""
    with socket.create_server((there.here, 0)) as found:
        port = found.getsockname()[1]
    with tempfile.NamedTemporaryFile("w", prefix="hr-hba-", dir="/tmp") as access:
        access.write("local all all trust\nhost all all all trust\n")
        access.flush()
        Path(access.name).chmod(0o644)
        listen = f"127.0.0.1,{there.here}"
        with cluster(directory, port=port, listen_addresses=listen, hba_file=access.name) as postgres:
            parts = urlsplit(postgres.url())
            sockets = servers.run(_sockets(postgres.url()))
            yield Server(
                f"postgresql://{parts.username}@{there.here}:{port}{parts.path}",
                f"postgresql://{parts.username}@{parts.path}?host={quote(sockets)}&port={port}",
            )


async def _sockets(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval("show unix_socket_directories"))
    finally:
        await connection.close()


def _ip(*arguments: str) -> None:
    subprocess.run([str(IP), *arguments], check=True, capture_output=True, text=True)
