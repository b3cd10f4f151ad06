"""A proxy for a database that counts the messages of the protocol, and meets one of them with a fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Any

from tests.support.silence import Proxy

DELAY = 0.02
"""Seconds by which a message is delayed. Other connections overtake it meanwhile."""


UNASKED = 0.05
"""Seconds after which a server that has not become ready was asked for nothing."""


class Fault(StrEnum):
    """The fault that a message meets.

    `BEFORE` and `AFTER` cut the connection before or after it was forwarded. `UNANSWERED` forwards it and lets the server do
    all that it was asked for, and then cuts the connection without an answer. `DELAY` forwards it later. `SILENCE` forwards
    it, and nothing more in either direction, as if the network had vanished.
    """

    BEFORE = "before"
    AFTER = "after"
    UNANSWERED = "unanswered"
    DELAY = "delay"
    SILENCE = "silence"


class CountingProxy(Proxy):
    """A proxy that forwards one message of the protocol at a time.

    Attributes:
        count: how many messages there were since `arm`.
        met: whether the fault has happened.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.count = 0
        self.met = False
        self._fault: Fault | None = None
        self._at = 0

    def arm(self, fault: Fault | None = None, at: int = 0) -> None:
        """Count from 0. The message number `at`, from 1, meets the fault."""
        self.count, self.met, self._fault, self._at = 0, False, fault, at

    def url(self, dsn: str | None = None) -> str:
        """Return the URL of a database through the proxy. The driver does not ask for TLS, which has no messages to count."""
        url = super().url(dsn)
        return f"{url}{'&' if '?' in url else '?'}sslmode=disable"

    async def _serve(self, link: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        state = _State()
        try:
            with suppress(OSError):
                theirs, ours = await self._dial()
                link.far = ours
                tasks = [
                    asyncio.create_task(self._forward(state, reader, ours, asks=True)),
                    asyncio.create_task(self._forward(state, theirs, writer, asks=False)),
                    asyncio.create_task(state.until_cut()),
                ]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._links.discard(link)
            link.reset()

    async def _forward(
        self, state: _State, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, asks: bool
    ) -> None:
        """Forward one direction, until it ends or the connection is to be cut. Only the first message of a client has no
        type."""
        typed = not asks
        while True:
            try:
                head = await reader.readexactly(5 if typed else 4)
                message = head + await reader.readexactly(int.from_bytes(head[-4:], "big") - 4)
            except asyncio.IncompleteReadError:
                return
            typed = True
            self.count += 1
            fault = self._fault if self.count == self._at else None
            if fault is not None:
                self.met = True
            if fault is Fault.BEFORE:
                return
            if fault is Fault.DELAY:
                await asyncio.sleep(DELAY)
            if fault is Fault.UNANSWERED:
                state.lose_answers()
            if state.silent or (state.unanswered and not asks):
                state.heard(message)
                continue
            writer.write(message)
            await writer.drain()
            if fault is Fault.SILENCE:
                state.silent = True
            if fault is Fault.AFTER:
                return


class _State:
    """Whether a connection forwards messages.

    Attributes:
        silent: nothing is forwarded any more.
        unanswered: nothing of the server is forwarded any more. The connection is cut when the server is ready.
    """

    def __init__(self) -> None:
        self.silent = False
        self._unanswered = asyncio.Event()
        self._ready = asyncio.Event()

    @property
    def unanswered(self) -> bool:
        return self._unanswered.is_set()

    def lose_answers(self) -> None:
        self._unanswered.set()

    def heard(self, message: bytes) -> None:
        """Note an answer that is not forwarded."""
        if message.startswith(b"Z"):
            self._ready.set()

    async def until_cut(self) -> None:
        """Wait until the server has done what it was asked for. It may have been asked for nothing."""
        await self._unanswered.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(UNASKED):
                await self._ready.wait()


@asynccontextmanager
async def counting(dsn: str) -> AsyncIterator[CountingProxy]:
    """A listening proxy for the server of this URL."""
    proxy = CountingProxy(dsn)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()
