"""Decodes and publishes bodies, the large ones in a separate process.

The decoder of JSON holds the interpreter until it is done, which takes up to 3 ms per MB, and the rest of a form or a
signed delivery up to 100 ms per MB. In a thread that would hold up all other requests as well. To copy a body of 9 MB
takes several ms each time, and storing it copies it often. So the event loop only passes on its pieces, as they arrived,
and the process publishes the messages. It starts with the first large body, and ends when there was none for a while. Its
places go round the callers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Hashable, Sequence

import anyio

from headrace.model.errors import UnknownStream
from headrace.runtime.pipeline.shared import Shared
from headrace.server.background.tasks import BackgroundPart
from headrace.server.data_plane.message_engine import MessageEngine
from headrace.server.data_plane.registry import CachedStream
from headrace.server.decoding.child import Child, in_doubt
from headrace.server.decoding.jobs import DeliveryHead, Head, Job, Published, Target, decoded, naming_field, published
from headrace.server.decoding.process import PLACES, PLACES_OF_CALLER
from headrace.store.connections.fair_shares import FairShares

LARGE = 262_144
"""Size in bytes from which a publish request is decoded in the process. Smaller ones arrive in one piece."""

LARGE_DELIVERY = 65_536
"""Size in bytes from which the delivery of a webhook is, since forms take longer."""

TIMEOUT = 90.0
"""Seconds that a body has to be decoded and published. It is longer than a statement may take."""

IDLE = 60.0
"""Seconds without a large body after which the process ends, and after which one that failed to start is started again."""


class Decoding(BackgroundPart):
    """Decodes and publishes the bodies of one server. It is attached to the server's app, and does everything in the event
    loop while that doesn't run, or where the process can't be started."""

    def __init__(self) -> None:
        self._places = FairShares(PLACES, PLACES_OF_CALLER, 0)
        self._sending = asyncio.Lock()
        self._child: Child | None = None
        self._running = False
        self._used_at = self._failed_at = float("-inf")
        self._stopped = anyio.Event()

    async def publish(
        self,
        caller: Hashable,
        pieces: Sequence[bytes],
        engine: MessageEngine,
        stream: CachedStream,
        head: Head = None,
    ) -> Published:
        """Decode and check a body, and publish its messages, all or none. Returns after the commit.

        Args:
            caller: with whom others share the process.
            pieces: the body, as it arrived.
            engine: publishes what isn't large, and has the database.
            head: what is known besides the body.

        Raises:
            Exception: what is wrong with it, for `error_response`.
            UnknownStream, InvalidInput, StreamFull, StoreUnavailable.
            InDoubt: the process has failed.
        """
        if self._running and sum(map(len, pieces)) > (LARGE_DELIVERY if isinstance(head, DeliveryHead) else LARGE):
            database = engine.database
            target = Target(database.dsn, database.application_name, database.connect_timeout)
            try:
                found = await self._publish_in_process(caller, pieces, Job(target, stream.name, head))
            except UnknownStream:
                engine.forget_stream(stream)
                raise
            if found is not None:
                engine.published_to(stream, found.count, found.due)
                return found
        messages = decoded(b"".join(pieces), head)
        with naming_field(messages, head):
            return published(messages, await engine.publish(stream, messages))

    async def _publish_in_process(self, caller: Hashable, pieces: Sequence[bytes], job: Job) -> Published | None:
        """Publish in the process. None if it can't be started."""
        async with self._places.place(caller, bounded=False):  # the limits of requests bound how many wait
            try:
                async with asyncio.timeout(TIMEOUT):
                    async with self._sending:
                        child = await self._started()
                        if child is None:
                            return None
                        answer = await child.send(job, pieces)
                    return await answer
            except TimeoutError as error:
                await self._end()
                raise in_doubt() from error
            finally:
                self._used_at = asyncio.get_running_loop().time()

    async def _started(self) -> Child | None:
        """Return the process. None if it can't be started, or no longer."""
        now = asyncio.get_running_loop().time()
        if not self._running or (self._child is not None and self._child.alive):
            return self._child if self._running else None
        if not sys.executable or now < self._failed_at + IDLE:
            return None
        self._child = await Child.start()
        if self._child is None:
            self._failed_at = now
        elif not self._running:  # it was ended while the process started
            await self._end()
        return self._child

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.end()

    # --- events from the app

    async def run(self, shared: Shared) -> None:
        """Use a process until `drain`, and end it once its last body is published."""
        self._running = True
        try:
            with anyio.CancelScope() as self.scope:
                while not self._stopped.is_set():
                    with anyio.move_on_after(IDLE):
                        await self._stopped.wait()
                    await self._end_if_idle()
                self._running = False
                async with self._sending:
                    if self._child is not None and self._child.answers:
                        await asyncio.wait(self._child.answers.values())
        finally:
            self._running, self.scope = False, None
            self._stopped = anyio.Event()  # the app may run again
            await self._end()

    async def _end_if_idle(self) -> None:
        if not self._places.in_use and asyncio.get_running_loop().time() > self._used_at + IDLE:
            await self._end()

    def drain(self) -> None:
        """End."""
        self._stopped.set()
