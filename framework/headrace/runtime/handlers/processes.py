"""Worker processes: handlers that keep a processor busy run in them, and can be stopped there, by a kill.

    start ──▶ idle ──▶ at an errand ──▶ idle ──▶ …  until the consumer ends
                           │
                           ├─ cancelled: killed
                           └─ died: only this errand has failed

A process that is gone is replaced when the next one is needed. They are started fresh, not forked, with the standard library's
`multiprocessing`, which also knows how to bring the main module along.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import resource_tracker
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from headrace.model.handling import Handling
from headrace.runtime.batch import Batch
from headrace.runtime.bench import NEVER, at_work
from headrace.runtime.handlers.errands import LEFT_ALONE, Place, ProcessFailed, errand, opened, serve
from headrace.runtime.message import Message
from headrace.runtime.wiring import Clock

STARTING = 60.0
"""Seconds that a process may take to start and to import the handler."""

LEAVING = 2.0
"""Seconds that an idle process may take to end by itself."""

R = TypeVar("R")


class Worker:
    """One process. Its methods block; one thread at a time uses it."""

    def __init__(self, place: Place, *, batch: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, self._theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(self._theirs, place, batch), name=f"headrace {place.name}")
        self._in_use = threading.Lock()

    def start(self) -> None:
        """Start it."""
        resource_tracker.ensure_running()  # or else it unblocks the signals when it is started below
        # Until the process can see to its signals itself. The mask is this thread's own.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_ALONE)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._theirs.close()

    def ready(self) -> None:
        """Wait until it has found the handler. Raises `ProcessFailed`."""
        with self._in_use:
            late = not self._connection.poll(STARTING)
            problem = f"it was not ready after {STARTING:g} s" if late else self._receive().decode()
        if problem:
            self.end()
            raise ProcessFailed(f"The handler's process can't be used: {problem}")

    def ask(self, request: bytes) -> bytes:
        """Have an errand done. Raises `ProcessFailed` when the process dies of it."""
        with self._in_use:
            with suppress(OSError):  # it is dead, and reading will tell
                self._connection.send_bytes(request)
            return self._receive()

    def _receive(self) -> bytes:
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            self._connection.close()
            self._process.join()
            raise self._obituary() from None

    def _obituary(self) -> ProcessFailed:
        code = self._process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return ProcessFailed(f"The handler's process {how}.")

    @property
    def pid(self) -> int:
        """Its number, once it is started."""
        return self._process.pid or 0

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.is_alive()

    def kill(self) -> None:
        """Stop it now, whatever it does. Who waits for its answer sees it die."""
        self._process.kill()

    def end(self) -> None:
        """Let it end, or kill it, and wait for that."""
        if self._in_use.acquire(timeout=LEAVING):  # a thread that still reads closes it itself
            self._connection.close()
            self._in_use.release()
        self._process.join(LEAVING)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


class Processes:
    """The worker processes of one consumer, as many as it has handlers running at a time.

    Args:
        place: where the handler is found.
        clock: for its timeout, which the start of a process doesn't count against.
    """

    def __init__(self, place: Place, handling: Handling, clock: Clock) -> None:
        self._place = place
        self._batch = handling.batch is not None
        self._timeout = handling.timeout
        self._clock = clock
        self._idle: list[Worker] = []
        self._threads = anyio.CapacityLimiter(handling.concurrency[1])

    async def run(self, _payload: Any, delivery: Message | Batch) -> Any:
        """Run the handler. Cancelled, it kills the process."""
        worker = await self._take()
        answer = await self._use(worker, partial(worker.ask, errand(delivery)))
        self._idle.append(worker)
        return opened(answer, delivery)

    async def close(self) -> None:
        """End the processes. Nothing runs in them any more."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                while self._idle:
                    group.start_soon(partial(anyio.to_thread.run_sync, self._idle.pop().end, limiter=self._threads))

    async def _take(self) -> Worker:
        """One that is ready, the last that was used if there is a choice."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            worker.end()  # at once, for it is dead
        worker = Worker(self._place, batch=self._batch)
        bench = at_work.get()
        if bench is not None:
            bench.until = NEVER
        await anyio.to_thread.run_sync(worker.start, limiter=self._threads)
        await self._use(worker, worker.ready)
        if bench is not None and self._timeout is not None:
            bench.until = self._clock() + self._timeout
        return worker

    async def _use(self, worker: Worker, act: Callable[[], R]) -> R:
        """Let it act, in a thread that waits for it. Cancelled, kill it, and so end the thread's wait."""
        try:
            return await anyio.to_thread.run_sync(act, abandon_on_cancel=True, limiter=self._threads)
        except anyio.get_cancelled_exc_class():
            worker.kill()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(worker.end, limiter=self._threads)
            raise
