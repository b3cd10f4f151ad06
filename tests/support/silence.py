"""A TCP proxy in front of a database that goes silent: packets are taken and acknowledged, and nothing more is heard.

No FIN, no RST, and the kernel of this end still acknowledges what is sent, as behind a load balancer, a proxy or a forwarded port
whose other half has vanished. So keepalives and `TCP_USER_TIMEOUT` notice nothing, and only deadlines do. Packets that are not
acknowledged need a network of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, unquote, urlsplit

_CHUNK = 65_536


class Proxy:
    """Forwards any number of connections to one server, until it is cut. All methods but `move` return at once.

    Attributes:
        port: where it listens, on 127.0.0.1.
        accepted: connections that have come in so far.
    """

    def __init__(self, target: str, *, pace: float = 0.0) -> None:
        """`target` is the URL of a database, on a Unix socket or on TCP; `pace` the seconds that each 64 KiB take."""
        self._pace = pace
        self._target = target
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._cut = False
        self.port = 0
        self.accepted = 0

    def url(self, dsn: str | None = None) -> str:
        """The URL of a database by way of the proxy: that of `dsn`, on the same server, or of the target."""
        parts = urlsplit(dsn or self._target)
        login, at, _ = parts.netloc.rpartition("@")
        left = "&".join(pair for pair in parts.query.split("&") if pair.partition("=")[0] not in ("host", "port"))
        return parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}", query=left).geturl()

    @property
    def open(self) -> int:
        """Connections that pass on what comes."""
        return sum(not link.dead for link in self._links)

    @property
    def dead(self) -> int:
        """Connections that have died in silence and that nobody has closed."""
        return sum(link.dead for link in self._links)

    def cut(self) -> None:
        """Fall silent: nothing passes on the open connections, and new ones are accepted and hear nothing."""
        self._cut = True
        for link in self._links:
            link.hold()

    def heal(self, *, resume: bool = False) -> None:
        """New connections pass again. What was open stays dead for ever, as when a router has lost its state.

        With `resume` it goes on, with what was held back, as when a cable was out for a while.
        """
        self._cut = False
        for link in self._links:
            if resume:
                link.let_go()
            elif link.held:
                link.die()

    def forget(self) -> None:
        """Every open connection dies in silence. New ones pass."""
        for link in self._links:
            link.die()

    def forget_one(self) -> None:
        """One of the open connections dies in silence, the one that was opened last."""
        next(link for link in sorted(self._links, key=lambda link: -link.number) if not link.dead).die()

    def refuse(self) -> None:
        """Reset what is open, and refuse whoever comes, until `listen`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in self._links:
            link.reset()

    async def listen(self) -> None:
        """Accept connections, on the same port as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close everything, both ends."""
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
    """One connection through the proxy, and what may pass on it."""

    def __init__(self, number: int, near: asyncio.StreamWriter, pace: float) -> None:
        self._pace = pace
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
        """Wait while it is held. Returns whether something may pass then."""
        await self._changed.wait()
        return not self.dead

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction. The end of a connection is a packet like any other: it doesn't pass either."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if not await self.passes():
                    await _swallow(reader)
                    return
                if self._pace:
                    await asyncio.sleep(self._pace * len(data) / _CHUNK)
                writer.write(data)
                await writer.drain()
        if await self.passes():
            writer.close()

    def reset(self) -> None:
        """Close both ends at once."""
        self.die()
        for writer in (self.near, self.far):
            if writer is not None:
                writer.transport.abort()


async def _swallow(reader: asyncio.StreamReader) -> None:
    """Read, so that the kernel goes on acknowledging, and forget it."""
    with suppress(OSError):
        while await reader.read(_CHUNK):
            pass


@asynccontextmanager
async def proxied(target: str, *, pace: float = 0.0) -> AsyncIterator[Proxy]:
    """A proxy in front of the database at `target`, closed at the end."""
    proxy = Proxy(target, pace=pace)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()
