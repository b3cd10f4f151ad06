"""The HTTP connections of push consumers. Addresses are checked when a connection is made, not when a
name is resolved.

Each consumer has a client of its own, with its own connections, name lookups, and share of the process's
connections. So an endpoint that accepts connections and never answers, or a name server that is silent, holds
up its own consumer only.
"""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
from aiohttp.abc import AbstractResolver, ResolveResult

from headrace.model.push import LONGEST_TIMEOUT
from headrace.server.push.addresses import AllowedAddresses

MAX_CONNECTIONS = 1000
"""Most concurrent connections of a process. Also at most a quarter of the files that it may open."""

MAX_LOOKUPS = 200
"""Most concurrent name lookups of a process. Each is a thread. A consumer has one at a time."""

IDLE_TIMEOUT = 4.0
"""Seconds for which an idle connection is kept. Many servers close theirs after 5, and a request
sent at that moment is lost."""


class AddressNotAllowed(OSError):
    """Push consumers may not connect to the address."""

    def __str__(self) -> str:
        return str(self.strerror)


class Exchange:
    """One request.

    Attributes:
        connected: whether it got a connection, so that something of it may have been sent.
    """

    def __init__(self) -> None:
        self.connected = False


class PushClient:
    """The HTTP client of one consumer.

    Attributes:
        session: connects to allowed addresses only, keeps no cookies, and uses no proxy from the environment.
            It takes an `Exchange` as `trace_request_ctx`.
        share: the consumer's share of the connections. Take one for each request.
    """

    def __init__(self, allowed: AllowedAddresses, lookups: anyio.CapacityLimiter) -> None:
        def open_socket(address: tuple[Any, ...]) -> socket.socket:
            # Called with the address that is connected to next.
            family, kind, protocol, _, target = address
            refusal = allowed.refusal(target[0])
            if refusal is not None:
                raise AddressNotAllowed(errno.EACCES, refusal)
            return socket.socket(family, kind, protocol)

        self.share = anyio.CapacityLimiter(1)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # `share` is the limit
                keepalive_timeout=IDLE_TIMEOUT,
                socket_factory=open_socket,
                resolver=Resolver(lookups),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
            auto_decompress=False,  # none was requested, and decompressed data has no bound
            trust_env=False,
            trace_configs=[_tracing()],
        )

    async def close(self) -> None:
        """Close the connections."""
        await self.session.close()


class PushClients:
    """Makes the clients of a process, and divides its connections among them equally.

    Args:
        allowed: the addresses that they may connect to.
        connections: the most concurrent connections, `MAX_CONNECTIONS` by default. With more consumers than
            that, each has one.
    """

    def __init__(self, allowed: AllowedAddresses, connections: int | None = None) -> None:
        self._allowed = allowed
        self._connections = _affordable_connections() if connections is None else connections
        self._lookups = anyio.CapacityLimiter(MAX_LOOKUPS)
        self._clients: set[PushClient] = set()

    def open(self) -> PushClient:
        """Make a client."""
        client = PushClient(self._allowed, self._lookups)
        self._clients.add(client)
        self._divide()
        return client

    async def close(self, client: PushClient) -> None:
        """Close a client. The others share its connections."""
        self._clients.discard(client)
        self._divide()
        with anyio.CancelScope(shield=True):
            await client.close()

    def _divide(self) -> None:
        for client in self._clients:
            client.share.total_tokens = max(self._connections // len(self._clients), 1)


class Resolver(AbstractResolver):
    """Resolves the names of one consumer, one at a time, in threads of their own. In the event loop's threads,
    slow lookups would hold up all others, such as those of the database.

    Args:
        lookups: limits the lookups of all consumers together.
    """

    def __init__(self, lookups: anyio.CapacityLimiter) -> None:
        self._all = lookups
        self._one = anyio.CapacityLimiter(1)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name. Raises `OSError`."""

        def look_up() -> list[Any]:
            return socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)

        async with self._one:
            found = await anyio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=self._all)
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(
                hostname=host, host=_with_zone(target), port=target[1], family=kind, proto=protocol, flags=numeric
            )
            for kind, _, protocol, _, target in found
            if kind in (socket.AF_INET, socket.AF_INET6)
        ]

    async def close(self) -> None:
        """Release nothing, since a running lookup can't be stopped."""


@asynccontextmanager
async def connection_of(client: PushClient, seconds: float) -> AsyncIterator[bool]:
    """Hold one of a client's connections. Yields whether there was one within these seconds."""
    with anyio.move_on_after(seconds) as waiting:
        await client.share.acquire()
    if waiting.cancelled_caught:
        yield False
        return
    try:
        yield True
    finally:
        client.share.release()


def timeout(seconds: float) -> aiohttp.ClientTimeout:
    """Return a time limit for a whole request, in seconds with millisecond precision. By
    default, the client rounds long ones up to whole seconds."""
    return aiohttp.ClientTimeout(total=seconds, ceil_threshold=LONGEST_TIMEOUT)


def _with_zone(target: tuple[Any, ...]) -> str:
    """Return the address of a socket address, with the zone of a link-local one."""
    host = str(target[0])
    return f"{host}%{target[3]}" if len(target) > 3 and target[3] and "%" not in host else host


def _affordable_connections() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(min(MAX_CONNECTIONS, files // 4), 1)


def _tracing() -> aiohttp.TraceConfig:
    """Return hooks that note when a request has a connection."""

    async def connected(_: aiohttp.ClientSession, context: Any, __: object) -> None:
        context.trace_request_ctx.connected = True

    config = aiohttp.TraceConfig()
    config.on_connection_create_end.append(connected)
    config.on_connection_reuseconn.append(connected)
    return config
