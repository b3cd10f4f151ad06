"""Capture processes for tests that start, kill and freeze them and measure their memory."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.torture.fleet import Line, Worker, spawn


class Capturer:
    """Runs one process at a time, which captures everything in a database."""

    def __init__(self, dsn: str, log: Path) -> None:
        self._dsn = dsn
        self._log = log
        self._life: asyncio.Task[int] | None = None
        self.worker: Worker | None = None
        self.kills = 0

    async def start(self) -> None:
        """Start the process, and wait until it is ready."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        log = self._log.with_name(f"{self._log.name}-{self.kills}") if self.kills else self._log
        self.worker = await spawn("capture", log, module="tests.torture.capture_worker", dsn=self._dsn)
        self._life = asyncio.create_task(self.worker.read())
        async with asyncio.timeout(60):
            ready = asyncio.create_task(self.worker.said(lambda lines: any("ready" in line for line in lines)))
            await asyncio.wait({ready, self._life}, return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
        assert not self._life.done(), self.worker.last_words()

    async def kill(self) -> None:
        """Kill the process with SIGKILL, as the kernel does when memory runs out."""
        assert self.worker is not None
        assert self._life is not None
        assert not self._life.done(), f"it died by itself:\n{self.worker.last_words()}"
        self.worker.send(signal.SIGKILL)
        await self._life
        self.kills += 1

    def freeze(self) -> None:
        assert self.worker is not None
        self.worker.send(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.worker is not None
        self.worker.send(signal.SIGCONT)

    async def said(self, text: str) -> None:
        """Wait until the process has logged this."""
        assert self.worker is not None
        async with asyncio.timeout(60):
            await self.worker.said(lambda lines: any(text in line.get("logged", "") for line in lines))

    @property
    def lines(self) -> list[Line]:
        return self.worker.lines if self.worker else []

    @property
    def alive(self) -> bool:
        return self._life is not None and not self._life.done()

    async def end(self) -> None:
        """Let the process end normally. Kill it if it is frozen or hangs."""
        if self.worker is None or self._life is None or self._life.done():
            return
        self.thaw()
        self.worker.finish()
        done, _ = await asyncio.wait({self._life}, timeout=20)
        if not done:
            self.worker.send(signal.SIGKILL)
            await self._life

    # --- the memory of the process, in bytes

    def memory(self) -> int:
        """Return the current memory in bytes."""
        return self._status("VmRSS")

    def peak(self) -> int:
        """Return the peak memory in bytes since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        assert self.worker is not None
        Path(f"/proc/{self.worker.process.pid}/clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        assert self.worker is not None
        for line in Path(f"/proc/{self.worker.process.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"the kernel doesn't tell {name}")


@asynccontextmanager
async def capturer(dsn: str, log: Path) -> AsyncIterator[Capturer]:
    """A process that captures, ended at the end of the test."""
    process = Capturer(dsn, log)
    try:
        await process.start()
        yield process
    finally:
        await process.end()
