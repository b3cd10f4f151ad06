"""A TCP proxy for a database that breaks the connection on which a handler acks and commits in one message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

from tests.support.silence import Proxy

Break = Literal["before", "after", "late"]


class CommitProxy(Proxy):
    """Forwards data, until `breaks` is set. It breaks the connection of the next such commit.

    Attributes:
        breaks: `before` means that the server doesn't get the commit, `after` that its answer is lost. `late` means that
            the server gets it only after `let_through`, while its end of the connection is open.
        broken: set when the client's end of the connection was broken.
        let_through: set by the test.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.breaks: Break | None = None
        self.broken = asyncio.Event()
        self.let_through = asyncio.Event()

    async def _serve(self, link: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                theirs, ours = await self._dial()
                link.far = ours
                answers = asyncio.get_running_loop().create_task(link.pump(theirs, writer))
                try:
                    while data := await reader.read(65_536):
                        if self.breaks is not None and _acks(data):
                            while not data.endswith(b"S\0\0\0\4"):  # the server answers only after a Sync
                                more = await reader.read(65_536)
                                assert more, "the client has closed the connection before its Sync"
                                data += more
                            answers.cancel()
                            await asyncio.wait([answers])
                            await self._break(data, theirs, ours, writer)
                            return
                        ours.write(data)
                        await ours.drain()
                finally:
                    answers.cancel()
        finally:
            self._links.discard(link)
            link.reset()

    async def _break(
        self, data: bytes, theirs: asyncio.StreamReader, ours: asyncio.StreamWriter, writer: asyncio.StreamWriter
    ) -> None:
        when, self.breaks = self.breaks, None
        if when == "after":
            ours.write(data)
            await theirs.read(65_536)
        writer.transport.abort()
        self.broken.set()
        if when == "late":
            await self.let_through.wait()
            ours.write(data)
            await theirs.read(65_536)


def _acks(data: bytes) -> bool:
    """Whether a client binds the arguments of an ack that a COMMIT follows: six, as texts. asyncpg sends binary ones."""
    place = 0
    while data[place : place + 1] in (b"B", b"E"):
        length = int.from_bytes(data[place + 1 : place + 5], "big")
        if data[place : place + 1] == b"B":
            statement = data.index(b"\0", place + 5) + 1
            formats = data.index(b"\0", statement) + 1
            if data[formats : formats + 4] == b"\0\0\0\6":
                return True
        place += 1 + length
    return False


@asynccontextmanager
async def commit_proxy(dsn: str) -> AsyncIterator[CommitProxy]:
    """A listening proxy for the server of this URL."""
    proxy = CommitProxy(dsn)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()
