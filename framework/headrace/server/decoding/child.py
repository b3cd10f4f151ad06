"""The process for large bodies, as the server sees it."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import anyio

from headrace.model.errors import InDoubt
from headrace.model.log import Log
from headrace.server.decoding.jobs import Job, Published
from headrace.server.decoding.process import READY, REPLY, head_of, result_of

START_TIMEOUT = 20.0
"""Seconds that the process has to start."""

WRITTEN = 262_144
"""Most bytes of a body that one turn of the event loop passes on. A web server other than Headrace's own may deliver a
body in one piece."""

log = Log("headrace")


class Child:
    """The process for large bodies.

    Attributes:
        process: the process.
        answers: futures of the results of the bodies that were sent.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.answers: dict[int, asyncio.Future[Published]] = {}
        self._numbers = count()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls) -> Child | None:
        """Start the process. Returns None, and logs why, if it can't be started."""
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "headrace.server.decoding.process",
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,
            )
            assert process.stdout is not None
            async with asyncio.timeout(START_TIMEOUT):
                await process.stdout.readexactly(len(READY))
        except (OSError, EOFError, TimeoutError) as error:
            log.warning("no process for large bodies", error=str(error) or type(error).__name__)
            await _kill(process)
            return None
        except BaseException:  # cancelled before it was ready
            await _kill(process)
            raise
        return cls(process)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return not self._reading.done()

    async def send(self, job: Job, pieces: Sequence[bytes]) -> asyncio.Future[Published]:
        """Send a body, one at a time. Returns the future of its result, or of the error. That is `InDoubt` if the process
        ends before."""
        assert self.process.stdin is not None
        number, writer = next(self._numbers), self.process.stdin
        answer = self.answers[number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self.answers.pop(number))
        try:
            writer.write(head_of(number, job, sum(map(len, pieces))))
            for piece in pieces:
                for start in range(0, len(piece), WRITTEN):
                    writer.write(memoryview(piece)[start : start + WRITTEN])
                    await writer.drain()
        except OSError:
            pass  # the process has ended
        except BaseException:  # it would take the next body for the rest of this one
            answer.cancel()
            await self.end()
            raise
        if not self.alive and not answer.done():
            answer.set_exception(in_doubt())
        return answer

    async def _read(self) -> None:
        """Read the results until the process ends."""
        assert self.process.stdout is not None
        try:
            while True:
                number, size = REPLY.unpack(await self.process.stdout.readexactly(REPLY.size))
                result = result_of(await self.process.stdout.readexactly(size))
                answer = self.answers.get(number)
                if answer is None or answer.done():  # its request was cancelled
                    continue
                if isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)
        except (EOFError, OSError):
            pass
        finally:
            waiting = [answer for answer in self.answers.values() if not answer.done()]
            if waiting:
                log.warning("process for large bodies ended before its results", bodies=len(waiting))
            for answer in waiting:
                answer.set_exception(in_doubt())

    async def end(self) -> None:
        """End the process."""
        await _kill(self.process)
        await asyncio.wait([self._reading])


async def _kill(process: Process | None) -> None:
    if process is None:
        return
    with suppress(ProcessLookupError):
        process.kill()
    with anyio.CancelScope(shield=True):
        await process.wait()


def in_doubt() -> InDoubt:
    """Return the error for a body whose result is not known."""
    sentence = (
        "The server's process for large bodies ended before its answer. The messages may or may not be published."
    )
    return InDoubt(sentence).with_public(sentence)
