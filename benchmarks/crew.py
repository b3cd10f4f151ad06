"""A worker process, controlled by the benchmark that started it. `wire` defines the messages between them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.checks import CheckFailed
from benchmarks.processes import started
from benchmarks.wire import Failed, Finish, Job, Message, Progress, Ready, Report

_LONGEST_LINE = 1 << 26
_decoder = msgspec.json.Decoder(Message)


class Crew:
    """A running worker process. `begun` counts the messages that its slowest consumer began, a few ms ago."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self.pid = process.pid
        self.begun = 0
        self._process = process
        self._ready = anyio.Event()
        self._moved = anyio.Event()
        self._ended = anyio.Event()
        self._report: Report | None = None
        self._failure = "the worker process died"

    async def begun_at_least(self, count: int) -> None:
        """Wait until the slowest consumer has begun `count` messages. Raises `CheckFailed` if the worker ends before."""
        while self.begun < count:
            if self._ended.is_set():
                raise CheckFailed(self._failure)
            await self._moved.wait()

    async def finish(self, finish: Finish) -> Report:
        """Send the number of messages, and wait until they are settled and checked. Raises `CheckFailed`."""
        await self._send(finish)
        await self._ended.wait()
        if self._report is None:
            raise CheckFailed(self._failure)
        return self._report

    async def start(self, job: Job) -> None:
        await self._send(job)
        await self._ready.wait()
        if self._ended.is_set():
            raise CheckFailed(self._failure)

    async def listen(self) -> None:
        """Read the worker's output until it ends."""
        assert self._process.stdout is not None
        lines = BufferedByteReceiveStream(self._process.stdout)
        try:
            while True:
                self._receive(_decoder.decode(await lines.receive_until(b"\n", _LONGEST_LINE)))
                self._moved.set()
                self._moved = anyio.Event()
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            pass
        self._ended.set()
        self._ready.set()
        self._moved.set()

    def _receive(self, message: Message) -> None:
        match message:
            case Ready():
                self._ready.set()
            case Progress(begun):
                self.begun = begun
            case Report():
                self._report = message
            case Failed(reason):
                self._failure = reason

    async def _send(self, message: Job | Finish) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(msgspec.json.encode(message) + b"\n")


@asynccontextmanager
async def crew(job: Job) -> AsyncIterator[Crew]:
    """Start a worker process on a job, and stop it at the end."""
    async with started("benchmarks.worker") as process, anyio.create_task_group() as group:
        worker = Crew(process)
        group.start_soon(worker.listen)
        await worker.start(job)
        yield worker
        group.cancel_scope.cancel()
