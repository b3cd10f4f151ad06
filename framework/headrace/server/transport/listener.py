"""Listening of `headrace serve`: its sockets, and uvicorn's protocol on them.

uvicorn's own server is not used, since it takes over signals and logging, and wakes ten times a
second.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import ssl
import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any

import anyio
from uvicorn.config import Config
from uvicorn.server import ServerState

from headrace.model.errors import ConfigurationError, HeadraceError
from headrace.server.transport.limits import Application, Limits
from headrace.server.transport.protocol import connection_of
from headrace.store.database.keepalive import keep_alive

BACKLOG = 2048
"""Connections that may wait to be accepted. The kernel may allow fewer."""

CLIENT_PROBED_AFTER = 15
"""Seconds without a packet after which the kernel probes a client, which may have vanished while
it waits for messages."""

CLIENT_PATIENCE = 60
"""Seconds after which a client is dropped that answers no probe, or takes in nothing of its response."""

GOODBYE = 2.0
"""Seconds that clients have at the end to take in their last responses."""


class CantListen(HeadraceError):
    """The address is taken, or isn't one of this machine."""

    exit_code = 69  # EX_UNAVAILABLE


class Address:
    """An address to listen on.

    Args:
        host: a name or an address. "0.0.0.0" or "::" for all addresses of this machine.
        port: 0 for any free port.

    Attributes:
        loopback: whether only this machine can reach it.

    Raises:
        ConfigurationError: the host can't be resolved.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            raise ConfigurationError(
                f"--host {host!r} is no host: name an address of this machine, or 0.0.0.0 for all of them."
            ) from error
        found.sort(key=lambda one: one[0] != socket.AF_INET)  # IPv4 first, since localhost is mostly both
        self._family: int = found[0][0]
        self._address: Any = found[0][4]
        self.loopback = all(_is_loopback(str(one[4][0])) for one in found)

    def bind(self) -> socket.socket:
        """Bind a socket to the address, without listening. Raises `CantListen`.

        Until a server is ready, its clients should be refused and try another one, instead of
        waiting.
        """
        one = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._family == socket.AF_INET6 and self.host == "::":
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            keep_alive(one, after=CLIENT_PROBED_AFTER, patience=CLIENT_PATIENCE)
            one.bind(self._address)
            one.setblocking(False)
        except OSError as error:
            one.close()
            raise CantListen(_complaint(error, self.host, self.port)) from error
        return one


def _complaint(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"Port {port} of {host} is taken: stop what listens there, or name another --port."
        case errno.EACCES:
            return f"Port {port} may not be taken by this user: name a --port from 1024 on."
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine: name another --host, or 0.0.0.0 for all of them."
    return f"Port {port} of {host} can't be listened on: {os.strerror(error.errno or 0)}."


def listen(one: socket.socket) -> None:
    """Let clients connect and wait to be accepted. Raises `CantListen`."""
    try:
        one.listen(BACKLOG)
    except OSError as error:  # the port was taken after it was bound here
        raise CantListen(_complaint(error, *one.getsockname()[:2])) from error


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def url_of(listening: socket.socket, *, tls: bool) -> str:
    """Return the URL for clients, as far as it is known."""
    host, port = listening.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Filter of uvicorn's log. It drops records of requests that this server has cancelled,
    which uvicorn takes for failures."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class Listener:
    """The connections of one server process.

    Args:
        application: answers requests.
        limits: the limits of size and speed for clients.
        tls: the certificate, or None for plain HTTP.
    """

    def __init__(self, application: Application, limits: Limits, tls: ssl.SSLContext | None = None) -> None:
        self._options = limits.options
        self._protocol = connection_of(limits, self._gone)
        self._tls = tls
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._closed = anyio.Event()
        self._left = anyio.Event()  # set when a connection has ended
        # uvicorn only reports clients that send invalid HTTP, and they get an error response.
        told = logging.getLogger("uvicorn.error")
        told.setLevel(logging.ERROR)
        told.addFilter(_is_no_cancellation)
        self._config = Config(
            application, http=self._protocol, ws="none", lifespan="off", interface="asgi3", log_config=None, access_log=False,
            proxy_headers=False, server_header=False, timeout_keep_alive=self._options.idle_timeout,  # type: ignore[arg-type]
        )  # fmt: skip
        self._config.load()

    @property
    def connections(self) -> int:
        """Current number of connections."""
        return len(self._state.connections)

    async def open(self, listening: Sequence[socket.socket]) -> None:
        """Begin to accept connections. Raises `CantListen`."""
        self._tell_time()
        loop = asyncio.get_running_loop()
        patience = None if self._tls is None else self._options.head_timeout
        for one in listening:
            listen(one)
            server = await loop.create_server(
                lambda: self._protocol(self._config, self._state, {}, loop),
                sock=one, ssl=self._tls, backlog=BACKLOG, ssl_handshake_timeout=patience, ssl_shutdown_timeout=patience,
            )  # fmt: skip
            self._servers.append(server)

    async def run(self) -> None:
        """Keep the Date header of responses current, until closed."""
        while not self._closed.is_set():
            self._tell_time()
            with anyio.move_on_after(1 - time.time() % 1):
                await self._closed.wait()

    def _tell_time(self) -> None:
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]

    def close(self) -> None:
        """Accept no more connections, and close each one after its current response."""
        self._closed.set()
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def drained(self) -> None:
        """Wait until every request is answered, and until clients have taken in the answers or
        `GOODBYE` is over."""
        while self._state.tasks:
            await asyncio.wait(self._state.tasks)
        with anyio.move_on_after(GOODBYE):
            while self._state.connections:
                self._left = anyio.Event()
                await self._left.wait()

    def _gone(self) -> None:
        self._left.set()

    async def abort(self) -> None:
        """Close all connections and cancel all requests, without responses."""
        self.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in list(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks)
