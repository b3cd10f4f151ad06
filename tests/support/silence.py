"""A TCP proxy for a database that can fall silent: it receives and acknowledges packets, and sends nothing more.

There is no FIN and no RST, and the kernel of this end still acknowledges what is sent. A load balancer,
a proxy or a forwarded port behaves like that when its other half has vanished. Keepalives and
`TCP_USER_TIMEOUT` therefore notice nothing, and only deadlines help. `tests.support.namespaces`
simulates packets that are not acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, unquote, urlsplit

_CHUNK = 65_536


class Proxy:
    """A proxy that forwards any number of connections to one server until it is cut. All methods but `move` return at
    once.

    Attributes:
        port: The port where it listens, on 127.0.0.1.
        accepted: Number of connections accepted so far.
    """

    def __init__(self, target: str, *, pace: float = 0.0) -> None:
        """`target` is the URL of a database, on a Unix socket or on TCP. `pace` is the time in seconds
        that each 64 KiB take.
        """
        self._pace = pace
        self._target = target
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._cut = False
        self.port = 0
        self.accepted = 0

    def url(self, dsn: str | None = None) -> str:
        """Return the URL of a database through the proxy. The default database is that of the target.
        `dsn` names another one on the same server.
        """
        parts = urlsplit(dsn or self._target)
        login, at, _ = parts.netloc.rpartition("@")
        left = "&".join(pair for pair in parts.query.split("&") if pair.partition("=")[0] not in ("host", "port"))
        return parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}", query=left).geturl()

    @property
    def open(self) -> int:
        """Return the connections that forward data."""
        return sum(not link.dead for link in self._links)

    @property
    def dead(self) -> int:
        """Return the connections that have died in silence and are not closed."""
        return sum(link.dead for link in self._links)

    def cut(self) -> None:
        """Fall silent. Open connections forward nothing, and new connections are accepted and get no data."""
        self._cut = True
        for link in self._links:
            link.hold()

    def heal(self, *, resume: bool = False) -> None:
        """Let new connections work again. Connections that were open stay dead forever, as when a router has lost its
        state.

        With `resume` the open connections continue with the data that was held back, as when a cable
        was out for a while.
        """
        self._cut = False
        for link in self._links:
            if resume:
                link.let_go()
            elif link.held:
                link.die()

    def forget(self) -> None:
        """Let every open connection die in silence. New connections work."""
        for link in self._links:
            link.die()

    def forget_one(self) -> None:
        """Let the most recently opened connection die in silence."""
        next(link for link in sorted(self._links, key=lambda link: -link.number) if not link.dead).die()

    def slow(self, pace: float) -> None:
        """Let each 64 KiB of every connection take so many seconds from now on."""
        self._pace = pace
        for link in self._links:
            link.pace = pace

    def refuse(self) -> None:
        """Reset open connections, and refuse new connections until `listen`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in self._links:
            link.reset()

    async def listen(self) -> None:
        """Accept connections again, on the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close everything, at both ends."""
        self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(self.accepted, writer, self._pace)
        self._links.add(link)
        if self._cut:
            link.hold()
        task = asyncio.get_running_loop().create_task(self._serve(link, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await link.passes():
                with suppress(OSError):
                    theirs, ours = await self._dial()
                    link.far = ours
                    await asyncio.gather(link.pump(reader, ours), link.pump(theirs, writer))
            else:
                await _swallow(reader)
        finally:
            self._links.discard(link)
            link.reset()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._target)
        named = {name: values[0] for name, values in parse_qs(parts.query).items()}
        host = named.get("host") or unquote(parts.hostname or "127.0.0.1")
        port = int(named.get("port") or parts.port or 5432)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


class _Link:
    """One connection through the proxy, and whether data may pass on it."""

    def __init__(self, number: int, near: asyncio.StreamWriter, pace: float) -> None:
        self.pace = pace
        self.number = number
        self.near = near
        self.far: asyncio.StreamWriter | None = None
        self.held = False
        self.dead = False
        self._changed = asyncio.Event()
        self._changed.set()

    def hold(self) -> None:
        if not self.dead:
            self.held = True
            self._changed.clear()

    def let_go(self) -> None:
        self.held = False
        self._changed.set()

    def die(self) -> None:
        self.dead = True
        self.let_go()

    async def passes(self) -> bool:
        """Wait while the connection is held. Returns whether data may pass afterwards."""
        await self._changed.wait()
        return not self.dead

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction. The end of a connection is a packet like any other, so a silent proxy
        does not forward it either.
        """
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if not await self.passes():
                    await _swallow(reader)
                    return
                if self.pace:
                    await asyncio.sleep(self.pace * len(data) / _CHUNK)
                writer.write(data)
                await writer.drain()
        if await self.passes():
            writer.close()

    def reset(self) -> None:
        """Close both ends immediately."""
        self.die()
        for writer in (self.near, self.far):
            if writer is not None:
                writer.transport.abort()


async def _swallow(reader: asyncio.StreamReader) -> None:
    """Read and discard data, so that the kernel continues to acknowledge it."""
    with suppress(OSError):
        while await reader.read(_CHUNK):
            pass


@asynccontextmanager
async def proxied(target: str, *, pace: float = 0.0) -> AsyncIterator[Proxy]:
    """A proxy for the database at `target`, closed at the end."""
    proxy = Proxy(target, pace=pace)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()
