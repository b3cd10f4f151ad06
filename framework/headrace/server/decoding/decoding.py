"""Decodes bodies, the large ones in a process of their own.

The decoder of JSON holds the interpreter until it is done, which takes up to 3 ms per MB, and the rest of a form or a
signed delivery up to 100 ms per MB. In a thread that would hold up all other requests as well. The process starts with
the first large body, and ends when there was none for a while. Its time goes round the callers.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Hashable
from contextlib import suppress

import anyio

from headrace.model.log import Log
from headrace.runtime.pipeline.shared import Shared
from headrace.server.background.tasks import BackgroundPart
from headrace.server.data_plane.publish_batching import Incoming
from headrace.server.decoding.jobs import DeliveryHead, decoded
from headrace.server.decoding.process import READY, REPLY, job_of, result_of
from headrace.server.errors import unavailable
from headrace.store.connections.fair_shares import FairShares

LARGE = 262_144
"""Size in bytes from which a publish request is decoded in the process. Smaller ones arrive in one piece."""

LARGE_DELIVERY = 65_536
"""Size in bytes from which the delivery of a webhook is, since forms take longer."""

START_TIMEOUT = 20.0
"""Seconds that the process has to start."""

TIMEOUT = 30.0
"""Seconds that a body has to be decoded."""

IDLE = 60.0
"""Seconds without a large body after which the process ends, and after which one that failed to start is started again."""

log = Log("headrace")


class Decoding(BackgroundPart):
    """Decodes the bodies of one server. It is attached to the server's app, and decodes everything in the event loop
    while that doesn't run, or where the process can't be started."""

    def __init__(self) -> None:
        self._places = FairShares(1, 1, 0)
        self._process: Process | None = None
        self._running = False
        self._used_at = self._failed_at = float("-inf")
        self._stopped = anyio.Event()

    async def decode(self, caller: Hashable, body: bytes, head: DeliveryHead | None = None) -> Incoming:
        """Decode and check a body.

        Args:
            caller: with whom others share the process.
            head: of the delivery of a webhook. None for a publish request.

        Raises:
            Exception: what is wrong with it, for `error_response`.
            StoreUnavailable: the process has failed.
        """
        if len(body) <= (LARGE if head is None else LARGE_DELIVERY):
            return decoded(body, head)
        async with self._places.place(caller, bounded=False):  # the limits of requests bound how many wait
            process = await self._started() if self._running else None
            if process is None:
                return decoded(body, head)
            return await self._decode_in(process, body, head)

    async def _decode_in(self, process: Process, body: bytes, head: DeliveryHead | None) -> Incoming:
        assert process.stdin is not None
        assert process.stdout is not None
        done = False
        try:
            async with asyncio.timeout(TIMEOUT):
                process.stdin.write(job_of(body, head))
                process.stdin.write(body)
                await process.stdin.drain()
                size, refused = REPLY.unpack(await process.stdout.readexactly(REPLY.size))
                reply = await process.stdout.readexactly(size)
            done = True
        except (OSError, EOFError, TimeoutError) as error:
            log.warning("large body not decoded", bytes=len(body), error=str(error) or type(error).__name__)
            raise unavailable("The server could not decode the body. Try again.") from error
        finally:
            self._used_at = asyncio.get_running_loop().time()
            if not done:  # its next reply would be that to this body
                await self._end()
        return result_of(reply, refused=refused)

    async def _started(self) -> Process | None:
        """Return the process. None if it can't be started."""
        loop = asyncio.get_running_loop()
        if self._process is not None and self._process.returncode is None:
            return self._process
        if not sys.executable or loop.time() < self._failed_at + IDLE:
            return None
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "headrace.server.decoding.process",
                stdin=PIPE, stdout=PIPE, start_new_session=True, limit=2**26,
            )  # fmt: skip
            assert process.stdout is not None
            async with asyncio.timeout(START_TIMEOUT):
                await process.stdout.readexactly(len(READY))
        except (OSError, EOFError, TimeoutError) as error:
            log.warning("no process for large bodies", error=str(error) or type(error).__name__)
            self._failed_at = loop.time()
            await self._end()
            return None
        except BaseException:  # cancelled before it was ready
            await self._end()
            raise
        return process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()

    # --- events from the app

    async def run(self, shared: Shared) -> None:
        """Use a process until `drain`, and end it once its last body is decoded."""
        self._running = True
        try:
            with anyio.CancelScope() as self.scope:
                while not self._stopped.is_set():
                    with anyio.move_on_after(IDLE):
                        await self._stopped.wait()
                    await self._end_if_idle()
                self._running = False
                async with self._places.place(None, bounded=False):
                    pass
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
