"""The interface of an adapter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar

from benchmarks.peers.process.messages import Message
from benchmarks.peers.process.recorder import Handler


class Unable(Exception):
    """The peer has no such feature. The text says what is missing."""


class Adapter:
    """A peer, as its documentation recommends to use it.

    Attributes:
        SETTINGS: the recommended settings, which `--opt` overrides. Values are numbers or texts.
        url: of the fresh database, or of the peer's own server.
        settings: those of this run.
        readers: how many independent readers get each message.
        ordered: whether the messages of a key must be handled in order. A peer that promises no order ignores it.
        paced: whether messages come at a pace, and their latency counts.
        transaction: how many messages may share a transaction, where a row is written with each ack.
    """

    SETTINGS: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        url: str,
        settings: dict[str, Any],
        *,
        readers: int = 1,
        ordered: bool = False,
        paced: bool = False,
        transaction: int = 1,
    ) -> None:
        if unknown := settings.keys() - self.SETTINGS.keys():
            raise ValueError(f"Unknown option {', '.join(sorted(unknown))}. There are {', '.join(self.SETTINGS)}.")
        self.url = url
        self.settings = {name: type(default)(settings.get(name, default)) for name, default in self.SETTINGS.items()}
        self.readers = readers
        self.ordered = ordered
        self.paced = paced
        self.transaction = transaction

    async def set_up(self) -> None:
        """Install the schema and make the queue, with its readers. A run may get a copy of such a database."""
        raise NotImplementedError

    async def begin(self) -> None:
        """Start what runs beside publishers and workers. Called once for each run."""

    def publisher(self) -> AbstractAsyncContextManager[None]:
        """Connect for `publish`. The block ends with the connections closed."""
        raise NotImplementedError

    async def publish(self, messages: Sequence[Message], delay: float | None = None) -> None:
        """Publish messages in one call that returns once they are durable. Several calls may run at the same time.

        Args:
            messages: one, or a batch.
            delay: seconds after which they are to be handled.
        """
        raise NotImplementedError

    def open_transaction(self, messages: Sequence[Message]) -> AbstractAsyncContextManager[None]:
        """Publish messages in a transaction that commits at the end of the block."""
        raise Unable("messages are not published in a transaction of the caller")

    async def remaining(self) -> int:
        """How many messages are not done, over all readers. Called inside of `publisher`."""
        raise NotImplementedError

    async def stored(self) -> int:
        """How many messages there are, where none was handled yet."""
        return await self.remaining()

    async def consume(self, handler: Handler, reader: int, stop: asyncio.Event) -> None:
        """Handle messages as one worker until `stop` is set, then finish what is in work."""
        raise NotImplementedError


@asynccontextmanager
async def ended(task: asyncio.Task[Any]) -> AsyncIterator[None]:
    """Cancel a task at the end of the block."""
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
