"""The HTTP connections of push consumers. Addresses are checked when a connection is made, not when a
name is resolved.

Each stream has a share of the process's connections and name lookups, and each consumer a share of its stream's, with
a client of its own. So an endpoint that accepts connections and never answers, or a name server that is silent, holds
up its own consumer only, and a stream with many consumers takes nothing from other streams.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import ssl
from collections import deque
from functools import cache
from typing import Any

import anyio
import anyio.to_thread
from aiohappyeyeballs import start_connection

from headrace.server.push.addresses import AllowedAddresses
from headrace.server.push.http_connection import HttpConnection
from headrace.server.push.target import Target

AddressInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[Any, ...]]
"""An address as `socket.getaddrinfo` returns it."""

MAX_CONNECTIONS = 1000
"""Most concurrent connections of a process. Also at most a quarter of the files that it may open."""

MAX_LOOKUPS = 200
"""Most concurrent name lookups of a process. Each is a thread. A consumer has one at a time, and a stream its share."""

IDLE_TIMEOUT = 4.0
"""Seconds for which an idle connection is kept. Many servers close theirs after 5, and a request
sent at that moment is lost."""


CACHED = 10.0
"""Seconds for which the addresses of a name are used."""

NEXT_ADDRESS = 0.25
"""Seconds after which a connection to the next address of a name is tried, too, as RFC 8305 recommends."""


class AddressNotAllowed(OSError):
    """Push consumers may not connect to the address."""

    def __str__(self) -> str:
        return str(self.strerror)


class StreamShare:
    """The share of the consumers of one stream.

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
    """The HTTP client of one consumer. It connects to allowed addresses only, and uses no proxy from the environment.

    Attributes:
        stream: the number of the consumer's stream.
        share: the consumer's share of its stream's connections. Take one for each request.
        of_stream: what all consumers of the stream have together.
    """

    def __init__(
        self, allowed: AllowedAddresses, stream: int, of_stream: StreamShare, lookups: anyio.CapacityLimiter
    ) -> None:
        self._allowed = allowed
        self._resolver = Resolver(of_stream.lookups, lookups)
        self._idle: deque[HttpConnection] = deque()  # the one that has been idle for longest is the first
        self._sweeping: asyncio.TimerHandle | None = None
        self.stream = stream
        self.share = anyio.CapacityLimiter(1)
        self.of_stream = of_stream

    def idle(self) -> HttpConnection | None:
        """Take the connection that was used last, if there is one that can be used again."""
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                if asyncio.get_running_loop().time() - connection.idle_since < IDLE_TIMEOUT:
                    return connection
                connection.close()
        return None

    async def connect(self, target: Target) -> HttpConnection:
        """Make a connection.

        Raises:
            OSError: the target can't be reached, or its certificate is not valid.
            AddressNotAllowed: it may not be reached.
        """
        loop = asyncio.get_running_loop()
        found = await self._resolver.resolve(target.host.rstrip("."), target.port)
        connected = await start_connection(
            found, happy_eyeballs_delay=NEXT_ADDRESS, interleave=1, socket_factory=self._open_socket
        )
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _, connection = await loop.create_connection(
                HttpConnection,
                sock=connected,
                ssl=_tls() if target.tls else None,
                server_hostname=target.host.rstrip(".") if target.tls else None,
            )
        except BaseException:
            connected.close()
            raise
        return connection

    def give_back(self, connection: HttpConnection) -> None:
        """Keep a connection for the next request, if it can be used again."""
        if connection.reusable:
            self._idle.append(connection)
            if self._sweeping is None:
                self._sweep_in(IDLE_TIMEOUT)

    def _sweep_in(self, seconds: float) -> None:
        self._sweeping = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        """Close connections that have been idle for too long, and look again while there are others."""
        self._sweeping = None
        now = asyncio.get_running_loop().time()
        while self._idle and now - self._idle[0].idle_since >= IDLE_TIMEOUT:
            self._idle.popleft().close()
        if self._idle:
            self._sweep_in(self._idle[0].idle_since + IDLE_TIMEOUT - now)

    def _open_socket(self, address: AddressInfo) -> socket.socket:
        """Return a socket for the address that is connected to next."""
        family, kind, protocol, _, target = address
        refusal = self._allowed.refusal(target[0])
        if refusal is not None:
            raise AddressNotAllowed(errno.EACCES, refusal)
        return socket.socket(family, kind, protocol)

    def close(self) -> None:
        """Close the idle connections."""
        self._resolver.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        while self._idle:
            self._idle.pop().close()


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

    def close(self, client: PushClient) -> None:
        """Close a client. The others share its connections."""
        client.of_stream.clients.discard(client)
        if not client.of_stream.clients:
            self._streams.pop(client.stream, None)
        self._divide()
        client.close()

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


class Resolver:
    """Resolves the name of one consumer's endpoint, one at a time, in separate threads. In the event loop's threads,
    slow lookups would hold up all others, such as those of the database.

    Requests that wait for a lookup wait for the same one, and it continues when they have given up. So a name server
    that is silent holds one thread of a consumer, and not one for each request.

    Args:
        of_stream: limits the lookups of all consumers of the stream together.
        lookups: limits those of all streams together.
    """

    def __init__(self, of_stream: anyio.CapacityLimiter, lookups: anyio.CapacityLimiter) -> None:
        self._of_stream = of_stream
        self._all = lookups
        self._found: list[AddressInfo] = []
        self._found_at = float("-inf")
        self._running: asyncio.Task[list[AddressInfo]] | None = None

    async def resolve(self, host: str, port: int) -> list[AddressInfo]:
        """Return the addresses of a name, in another order each time. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._found_at >= CACHED:
            if self._running is None or self._running.done():
                self._running = asyncio.create_task(self._look_up(host, port))
                self._running.add_done_callback(_take_error)
            self._found = await asyncio.shield(self._running)
            self._found_at = loop.time()
        found = self._found
        self._found = [*found[1:], *found[:1]]
        return found

    async def _look_up(self, host: str, port: int) -> list[AddressInfo]:
        def look_up() -> list[Any]:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)

        async with self._of_stream:
            found = await anyio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=self._all)
        return [one for one in found if one[0] in (socket.AF_INET, socket.AF_INET6)]

    def close(self) -> None:
        """Give up a lookup that runs. Its thread can't be stopped."""
        if self._running is not None:
            self._running.cancel()


class PlaceForRequest:
    """One of a client's connections, held by `async with`, which gives whether there was one within these seconds."""

    def __init__(self, client: PushClient, seconds: float) -> None:
        # The consumer's first, so that a stream's places go to who can use them.
        self._limiters = (client.share, client.of_stream.connections)
        self._seconds = seconds
        self._held: list[anyio.CapacityLimiter] = []

    async def __aenter__(self) -> bool:
        try:
            for limiter in self._limiters:
                limiter.acquire_on_behalf_of_nowait(self)
                self._held.append(limiter)
        except anyio.WouldBlock:
            await self._wait()
        return len(self._held) == len(self._limiters)

    async def _wait(self) -> None:
        try:
            with anyio.move_on_after(self._seconds):
                for limiter in self._limiters[len(self._held) :]:
                    await limiter.acquire_on_behalf_of(self)
                    self._held.append(limiter)
        except BaseException:
            self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        for limiter in self._held:
            limiter.release_on_behalf_of(self)


@cache
def _tls() -> ssl.SSLContext:
    """Return what verifies the certificates of endpoints."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _take_error(task: asyncio.Task[Any]) -> None:
    """Take the error of a task for which nobody may wait any more."""
    if not task.cancelled():
        task.exception()


def _affordable_connections() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(min(MAX_CONNECTIONS, files // 4), 1)
