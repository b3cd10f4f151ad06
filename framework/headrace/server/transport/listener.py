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
from headrace.server.transport.exchange import FindEndpoint
from headrace.server.transport.limits import Application, Limits
from headrace.server.transport.protocol import connection_class
from headrace.store.connections.keepalive import keep_alive

BACKLOG = 2048
"""Connections that may wait to be accepted. The kernel may allow fewer."""

CLIENT_PROBE_AFTER = 15
"""Seconds without a packet after which the kernel probes a client, which may have vanished while
it waits for messages."""

CLIENT_TIMEOUT = 60
"""Seconds after which a client is disconnected that answers no probe, or reads nothing of its response."""

FLUSH_TIMEOUT = 2.0
"""Seconds that clients have at the end to read their last responses."""


class ListenError(HeadraceError):
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
                f"--host {host!r} can't be resolved. Give an address of this machine, or 0.0.0.0 for all of them."
            ) from error
        found.sort(key=lambda one: one[0] != socket.AF_INET)  # IPv4 first, since localhost is mostly both
        self._family: int = found[0][0]
        self._address: Any = found[0][4]
        self.loopback = all(_is_loopback(str(one[4][0])) for one in found)

    def bind(self) -> socket.socket:
        """Bind a socket to the address, without listening. Raises `ListenError`.

        Until a server is ready, its clients should be refused and try another one, instead of
        waiting.
        """
        bound = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._family == socket.AF_INET6 and self.host == "::":
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            keep_alive(bound, after=CLIENT_PROBE_AFTER, patience=CLIENT_TIMEOUT)
            bound.bind(self._address)
            bound.setblocking(False)
        except OSError as error:
            bound.close()
            raise ListenError(_reason(error, self.host, self.port)) from error
        return bound


def _reason(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"Port {port} of {host} is in use. Stop the process that listens there, or give another --port."
        case errno.EACCES:
            return f"This user may not listen on port {port}. Give a --port from 1024 on."
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine. Give another --host, or 0.0.0.0 for all of them."
    return f"Listening on port {port} of {host} failed: {os.strerror(error.errno or 0)}."


def listen(bound: socket.socket) -> None:
    """Let clients connect and wait to be accepted. Raises `ListenError`."""
    try:
        bound.listen(BACKLOG)
    except OSError as error:  # the port was taken after it was bound here
        raise ListenError(_reason(error, *bound.getsockname()[:2])) from error


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def url_of(listening: socket.socket, *, tls: bool) -> str:
    """Return the URL for clients, as far as it is known."""
    host, port = listening.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _is_not_cancellation(record: logging.LogRecord) -> bool:
    """Filter of uvicorn's log. It drops records of requests that this server has cancelled,
    which uvicorn takes for failures."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class Listener:
    """The connections of one server process.

    Args:
        application: answers requests.
        limits: the limits of size and speed for clients.
        tls: the certificate, or None for plain HTTP.
        find_endpoint: returns what answers a request without ASGI.
    """

    def __init__(
        self,
        application: Application,
        limits: Limits,
        tls: ssl.SSLContext | None = None,
        find_endpoint: FindEndpoint = lambda method, path: None,
    ) -> None:
        self._options = limits.options
        self._protocol = connection_class(limits, self._on_connection_closed, find_endpoint)
        self._tls = tls
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._closed = anyio.Event()
        self._connection_closed = anyio.Event()  # set when a connection has ended
        # uvicorn only reports clients that send invalid HTTP, and they get an error response.
        uvicorn_logger = logging.getLogger("uvicorn.error")
        uvicorn_logger.setLevel(logging.ERROR)
        uvicorn_logger.addFilter(_is_not_cancellation)
        self._config = Config(
            application,
            http=self._protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=self._options.idle_timeout,  # type: ignore[arg-type]
        )
        self._config.load()

    @property
    def connections(self) -> int:
        """Current number of connections."""
        return len(self._state.connections)

    async def open(self, listening: Sequence[socket.socket]) -> None:
        """Begin to accept connections. Raises `ListenError`."""
        self._update_date()
        loop = asyncio.get_running_loop()
        tls_timeout = None if self._tls is None else self._options.head_timeout
        for one in listening:
            listen(one)
            server = await loop.create_server(
                lambda: self._protocol(self._config, self._state, {}, loop),
                sock=one,
                ssl=self._tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=tls_timeout,
                ssl_shutdown_timeout=tls_timeout,
            )
            self._servers.append(server)

    async def run(self) -> None:
        """Keep the Date header of responses current, until closed."""
        while not self._closed.is_set():
            self._update_date()
            with anyio.move_on_after(1 - time.time() % 1):
                await self._closed.wait()

    def _update_date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]

    def close(self) -> None:
        """Accept no more connections, and close each one after its current response."""
        self._closed.set()
        for server in self._servers:
            server.close()
        for connection in list(self._state.connections):
            connection.shutdown()

    async def drained(self) -> None:
        """Wait until every request is answered, and until clients have read the responses or
        `FLUSH_TIMEOUT` is over."""
        while self._state.tasks:
            await asyncio.wait(self._state.tasks)
        with anyio.move_on_after(FLUSH_TIMEOUT):
            while self._state.connections:
                self._connection_closed = anyio.Event()
                await self._connection_closed.wait()

    def _on_connection_closed(self) -> None:
        self._connection_closed.set()

    async def abort(self) -> None:
        """Close all connections and cancel all requests, without responses."""
        self.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        while self._state.tasks:  # the end of one may begin another, such as a response that waits for its client
            for task in list(self._state.tasks):
                task.cancel()
            await asyncio.wait(self._state.tasks)
