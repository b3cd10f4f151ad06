"""The HTTP connections of push consumers. Addresses are checked when a connection is made, not when a
name is resolved.

Each stream has a share of the process's connections and name lookups, and each consumer a share of its stream's, with
a client of its own. So an endpoint that accepts connections and never answers, or a name server that is silent, holds
up its own consumer only, and a stream with many consumers takes nothing from other streams.
"""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
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
"""Most concurrent name lookups of a process. Each is a thread. A consumer has one at a time, and a stream its share."""

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


class StreamShare:
    """What the consumers of one stream have together.

    Attributes:
        connections: the stream's connections. Take one for each request, after one of the consumer's.
        lookups: its name lookups.
        clients: its consumers' clients.
    """

    def __init__(self) -> None:
        self.connections = anyio.CapacityLimiter(1)
        self.lookups = anyio.CapacityLimiter(1)
        self.clients: set[PushClient] = set()


class PushClient:
    """The HTTP client of one consumer.

    Attributes:
        session: connects to allowed addresses only, keeps no cookies, and uses no proxy from the environment.
            It takes an `Exchange` as `trace_request_ctx`.
        stream: the number of the consumer's stream.
        share: the consumer's share of its stream's connections. Take one for each request.
        of_stream: what all consumers of the stream have together.
    """

    def __init__(
        self, allowed: AllowedAddresses, stream: int, of_stream: StreamShare, lookups: anyio.CapacityLimiter
    ) -> None:
        def open_socket(address: tuple[Any, ...]) -> socket.socket:
            # Called with the address that is connected to next.
            family, kind, protocol, _, target = address
            refusal = allowed.refusal(target[0])
            if refusal is not None:
                raise AddressNotAllowed(errno.EACCES, refusal)
            return socket.socket(family, kind, protocol)

        self.stream = stream
        self.share = anyio.CapacityLimiter(1)
        self.of_stream = of_stream
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # `share` is the limit
                keepalive_timeout=IDLE_TIMEOUT,
                socket_factory=open_socket,
                resolver=Resolver(of_stream.lookups, lookups),
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
    """Makes the clients of a process, and divides its connections among streams, and each stream's among its consumers.

    A share is at least one. The consumers of a stream that has more of them than connections take turns.

    Args:
        allowed: the addresses that they may connect to.
        connections: the most concurrent connections, `MAX_CONNECTIONS` by default. With more streams than that,
            each has one.
    """

    def __init__(self, allowed: AllowedAddresses, connections: int | None = None) -> None:
        self._allowed = allowed
        self._connections = _affordable_connections() if connections is None else connections
        self._lookups = anyio.CapacityLimiter(MAX_LOOKUPS)
        self._streams: dict[int, StreamShare] = {}

    def open(self, stream: int) -> PushClient:
        """Make a client for a consumer of the stream with this number."""
        of_stream = self._streams.get(stream)
        if of_stream is None:
            of_stream = self._streams[stream] = StreamShare()
        client = PushClient(self._allowed, stream, of_stream, self._lookups)
        of_stream.clients.add(client)
        self._divide()
        return client

    async def close(self, client: PushClient) -> None:
        """Close a client. The others share its connections."""
        client.of_stream.clients.discard(client)
        if not client.of_stream.clients:
            self._streams.pop(client.stream, None)
        self._divide()
        with anyio.CancelScope(shield=True):
            await client.close()

    def _divide(self) -> None:
        if not self._streams:
            return
        connections = max(self._connections // len(self._streams), 1)
        lookups = max(MAX_LOOKUPS // len(self._streams), 1)
        for one in self._streams.values():
            one.connections.total_tokens = connections
            one.lookups.total_tokens = lookups
            for client in one.clients:
                client.share.total_tokens = max(connections // len(one.clients), 1)


class Resolver(AbstractResolver):
    """Resolves the names of one consumer, one at a time, in threads of their own. In the event loop's threads,
    slow lookups would hold up all others, such as those of the database.

    Args:
        of_stream: limits the lookups of all consumers of the stream together.
        lookups: limits those of all streams together.
    """

    def __init__(self, of_stream: anyio.CapacityLimiter, lookups: anyio.CapacityLimiter) -> None:
        self._of_stream = of_stream
        self._all = lookups
        self._one = anyio.CapacityLimiter(1)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name. Raises `OSError`."""

        def look_up() -> list[Any]:
            return socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)

        async with self._one, self._of_stream:
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
    async with AsyncExitStack() as held:
        with anyio.move_on_after(seconds) as waiting:
            await held.enter_async_context(client.share)  # first, so that a stream's places go to who can use them
            await held.enter_async_context(client.of_stream.connections)
        yield not waiting.cancelled_caught


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
