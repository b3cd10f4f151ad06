"""Worker processes, for handlers that keep a processor busy. A handler there can be stopped by killing
its process.

    start ──▶ idle ──▶ at an errand ──▶ idle ──▶ …  until the consumer ends
                           │
                           ├─ cancelled: killed
                           └─ died: only this errand has failed

A process that has ended is replaced when the next one is needed. Processes are started fresh, not
forked, with the standard library's `multiprocessing`, which also brings the main module along. Its pools are not used:
Ctrl-C must not reach a process before the drain, a busy process must be killed and replaced at a timeout, and all of
them must end with their parent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import connection, resource_tracker
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from headrace.model.clock import Clock
from headrace.model.errors import LeaseLost
from headrace.model.handling import Handling
from headrace.runtime.handlers.worker_protocol import Place, ProcessFailed, end_of, opened, request, serve
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message
from headrace.runtime.slot import NEVER, current_slot
from headrace.runtime.stop_signals import STOP_SIGNALS

STARTING = 60.0
"""Time limit in seconds for a process to start and to import the handler."""

LEAVING = 2.0
"""Time limit in seconds for an idle process to end before it is killed."""

R = TypeVar("R")


class Worker:
    """A worker process. Its methods block, and one thread at a time uses it."""

    def __init__(self, place: Place, *, batch: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, self._theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(self._theirs, place, batch), name=f"headrace {place.name}")
        self._in_use = threading.Lock()

    def start(self) -> None:
        """Start it."""
        resource_tracker.ensure_running()  # otherwise it starts below and unblocks the signals
        # The signals are blocked until the process can handle them. The mask is of this thread
        # only.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._theirs.close()
        self._end = end_of(self._process)

    def ready(self) -> None:
        """Wait until the process has found the handler. Raises `ProcessFailed`."""
        with self._in_use:
            late = not connection.wait([self._connection, self._end], STARTING)
            problem = f"it was not ready after {STARTING:g} s" if late else self._receive().decode()
        if problem:
            self.end()
            raise ProcessFailed(f"The handler's process failed to start: {problem}")

    def ask(self, request: bytes) -> bytes:
        """Send an errand, and return the answer. Raises `ProcessFailed` when the process dies."""
        with self._in_use:
            with suppress(OSError):  # the process is dead, and reading raises the right error
                self._connection.send_bytes(request)
            return self._receive()

    def _receive(self) -> bytes:
        try:
            if self._connection in connection.wait([self._connection, self._end]):
                return self._connection.recv_bytes()
        except (EOFError, OSError):
            pass
        self._connection.close()
        self.kill()  # what it has started
        self._process.join()
        raise self._death_message()

    def _death_message(self) -> ProcessFailed:
        code = self._process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return ProcessFailed(f"The handler's process {how}.")

    @property
    def pid(self) -> int:
        """The id of the process once it is started."""
        return self._process.pid or 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive()

    def kill(self) -> None:
        """Kill the process now, whatever it does, and what it has started. A thread that waits for its answer gets
        `ProcessFailed`."""
        with suppress(ProcessLookupError, PermissionError):  # it has no group yet, or has ended
            if self.pid:
                os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()

    def end(self) -> None:
        """Let the process end or kill it, and wait until it has ended."""
        if self._in_use.acquire(timeout=LEAVING):  # a thread that still reads closes it itself
            self._connection.close()
            self._in_use.release()
        self._process.join(LEAVING)
        if self._process.exitcode is None:
            self.kill()
            self._process.join()


class Processes:
    """The worker processes of one consumer, as many as it has handlers running at the same time.

    Args:
        place: the location of the handler.
        clock: the clock of the handler's timeout. The start of a process doesn't count against the
            timeout.
    """

    def __init__(self, place: Place, handling: Handling, clock: Clock) -> None:
        self._place = place
        self._batch = handling.batch is not None
        self._timeout = handling.timeout
        self._clock = clock
        self._idle: list[Worker] = []
        self._threads = anyio.CapacityLimiter(handling.concurrency[1])

    async def run(self, _payload: Any, delivery: Message | Batch) -> Any:
        """Run the handler. A cancellation kills the process."""
        worker = await self._take()
        try:
            answer = await self._use(worker, lambda: worker.ask(request(delivery)))  # the leases count in the thread
        except LeaseLost:
            self._idle.append(worker)
            raise
        self._idle.append(worker)
        return opened(answer, delivery)

    async def close(self) -> None:
        """End the processes, when nothing runs in them any more."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                while self._idle:
                    group.start_soon(partial(anyio.to_thread.run_sync, self._idle.pop().end, limiter=self._threads))

    async def _take(self) -> Worker:
        """Return a ready process, preferably the one used last. Starts one if there is none."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            worker.end()  # returns immediately, since the process is dead
        worker = Worker(self._place, batch=self._batch)
        slot = current_slot.get()
        if slot is not None:
            slot.until = NEVER
        await anyio.to_thread.run_sync(worker.start, limiter=self._threads)
        await self._use(worker, worker.ready)
        if slot is not None and self._timeout is not None:
            slot.until = self._clock() + self._timeout
        return worker

    async def _use(self, worker: Worker, act: Callable[[], R]) -> R:
        """Run a blocking call on the process in a thread. A cancellation kills the process, which ends
        the thread's wait."""
        try:
            return await anyio.to_thread.run_sync(act, abandon_on_cancel=True, limiter=self._threads)
        except anyio.get_cancelled_exc_class():
            worker.kill()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(worker.end, limiter=self._threads)
            raise
