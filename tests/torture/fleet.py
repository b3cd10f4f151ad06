"""Worker processes that a test kills, freezes and replaces."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.histories.__main__ import report

ROOT = Path(__file__).parents[2]

PATIENCE = 180.0
"""Seconds that workers may take for the remaining messages after the last publish."""

Line = dict[str, Any]


class Worker:
    """One worker process and its output."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log
        self.killed = False
        self.frozen = False
        self.lines: list[Line] = []
        self.news = asyncio.Condition()

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def finish(self) -> None:
        """Let the worker end once nothing is left to do."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def read(self) -> int:
        """Read the worker's output until it ends. Returns its exit code."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self.news:
                self.lines.append(json.loads(line))
                self.news.notify_all()
        return await self.process.wait()

    async def said(self, what: Callable[[list[Line]], bool]) -> None:
        """Wait until `what` is true of all output so far."""
        async with self.news:
            await self.news.wait_for(lambda: what(self.lines))

    def last_words(self) -> str:
        """Return the end of the worker's log."""
        return self.log.read_text(errors="replace")[-6000:]


async def spawn(
    work: str, log: Path, *, module: str = "tests.torture.worker", history: Path | None = None, **options: Any
) -> Worker:
    """Start a worker process with the options of its module. Its log goes to the file `log`, and its history to the
    directory `history`."""
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, work, *settings,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'framework'}", "HEADRACE_HISTORY": str(history or "")},
            limit=2**24,
        )  # fmt: skip
    return Worker(process, log)


class Fleet:
    """A fleet of `count` worker processes of `tests.torture.worker`. A worker that the fleet kills is replaced. A
    worker that ends otherwise fails the test. Each worker keeps a history, and all are checked at the end.

    Args:
        history: The directory of the histories. If it is given, the caller checks them.

    Attributes:
        kills, stops: Numbers of kills and freezes so far.
        workers: All workers that were ever started.
    """

    def __init__(
        self, work: str, count: int, logs: Path, seed: int, *, history: Path | None = None, **options: Any
    ) -> None:
        self._work = work
        self._count = count
        self._logs = logs
        self._checks = history is None
        self._history = history or logs / "history"
        self._seed = seed
        self._options = options
        self._keepers: list[asyncio.Task[None]] = []
        self._crew: dict[int, Worker] = {}  # the running workers, by place
        self._thaws: set[asyncio.Task[None]] = set()
        self._finishing = False
        self.workers: list[Worker] = []
        self.kills = 0
        self.stops = 0

    async def __aenter__(self) -> Fleet:
        first = [await self._spawn(slot) for slot in range(self._count)]
        self._keepers = [asyncio.create_task(self._keep(slot, worker)) for slot, worker in enumerate(first)]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for task in (*self._keepers, *self._thaws):
            task.cancel()
        await asyncio.gather(*self._keepers, *self._thaws, return_exceptions=True)
        for worker in self.workers:
            if worker.process.returncode is None:
                worker.send(signal.SIGKILL)
                await worker.process.wait()

    async def _keep(self, slot: int, worker: Worker) -> None:
        while True:
            code = await worker.read()
            if code == 0 and self._finishing:
                return
            if not worker.killed:
                raise AssertionError(f"a worker ended by itself with {code}; its last words:\n{worker.last_words()}")
            worker = await self._spawn(slot)
            if self._finishing:
                worker.finish()

    async def _spawn(self, slot: int) -> Worker:
        number = len(self.workers)
        log = self._logs / f"{self._work}-{number}.log"
        worker = self._crew[slot] = await spawn(
            self._work, log, history=self._history, seed=self._seed + number, **self._options
        )
        self.workers.append(worker)
        return worker

    async def ready(self) -> None:
        """Wait until all workers run their consumer, or one of them has died."""
        await self.or_death(
            asyncio.gather(*(w.said(lambda lines: {"ready": True} in lines) for w in self._crew.values()))
        )

    async def or_death(self, waiting: asyncio.Future[Any]) -> None:
        """Wait for the awaitable. Raise `AssertionError` if a worker ends unexpectedly before that."""
        done, _ = await asyncio.wait([waiting, *self._keepers], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task

    # --- chaos

    def kill(self, chance: random.Random) -> None:
        """Kill a random worker with SIGKILL. It is replaced."""
        worker = self._pick(chance)
        if worker is not None:
            worker.killed = True
            worker.send(signal.SIGKILL)
            self.kills += 1

    def freeze(self, chance: random.Random, seconds: float) -> None:
        """Freeze a random worker for so many seconds with SIGSTOP and SIGCONT."""
        worker = self._pick(chance)
        if worker is not None:
            worker.frozen = True
            worker.send(signal.SIGSTOP)
            self.stops += 1
            task = asyncio.create_task(self._thaw(worker, seconds))
            self._thaws.add(task)
            task.add_done_callback(self._thaws.discard)

    async def _thaw(self, worker: Worker, seconds: float) -> None:
        await asyncio.sleep(seconds)
        worker.frozen = False
        worker.send(signal.SIGCONT)

    def _pick(self, chance: random.Random) -> Worker | None:
        able = [w for w in self._crew.values() if w.process.returncode is None and not (w.killed or w.frozen)]
        return chance.choice(able) if able else None

    async def finish(self) -> None:
        """Stop the chaos, let all workers finish the remaining messages, and end them. Raises
        `AssertionError` if one ends badly.
        """
        if self._thaws:
            await asyncio.wait(self._thaws)
        self._finishing = True
        for worker in self._crew.values():
            worker.finish()
        _, late = await asyncio.wait(self._keepers, timeout=PATIENCE)
        if late:
            raise AssertionError(await self._why_late())
        await asyncio.gather(*self._keepers)
        if self._checks:
            found = await asyncio.to_thread(report, self._history)
            print(found.text)
            assert not found.violations, found.text

    async def _why_late(self) -> str:
        for worker in self._crew.values():
            if worker.process.returncode is None:
                worker.send(signal.SIGUSR1)
                with suppress(TimeoutError):
                    async with asyncio.timeout(5):
                        await worker.said(lambda lines: "statistics" in lines[-1])
        states = "\n".join(f"{worker.lines[-1:]}\n{worker.last_words()}" for worker in self._crew.values())
        return f"workers are still at work {PATIENCE:g} s after all was published:\n{states}"

    def lines(self) -> list[Line]:
        """Return the output lines of all workers."""
        return [line for worker in self.workers for line in worker.lines]
