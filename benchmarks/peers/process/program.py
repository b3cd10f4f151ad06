"""The process of a peer: `python -m benchmarks.peers.process.program ADAPTER JSON`.

Commands come as lines of JSON on standard input and are answered in their order, with a line of JSON each. While it
consumes, the process also reports how many messages were handled. The modules in JavaScript have the same protocol.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.peers.process.adapter import Adapter, Unable
from benchmarks.peers.process.messages import Message, message
from benchmarks.peers.process.recorder import Handler, Recorder, Write

PROGRESS_EVERY = 0.02

PATIENCE = 3.0
"""Seconds after which a publish is taken to wait for another one's transaction."""

Command = Callable[..., Awaitable[dict[str, Any]]]


class Program:
    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._publishing = AsyncExitStack()
        self._recorder = Recorder()
        self._stop = asyncio.Event()
        self._consuming: asyncio.Task[None] | None = None
        self._open = False

    async def run(self) -> None:
        say({"done": "start", "settings": self._adapter.settings})
        loop, lines = asyncio.get_running_loop(), asyncio.Queue[str]()

        def read() -> None:
            for line in sys.stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "")

        threading.Thread(target=read, daemon=True).start()
        while line := await lines.get():
            command = json.loads(line)
            name = command.pop("do")
            try:
                action: Command = getattr(self, f"_do_{name}")
                say({"done": name, **await action(**command)})
            except Unable as reason:
                say({"unable": str(reason)})
            except Exception:
                say({"failed": traceback.format_exc(limit=-8)})

    async def _do_set_up(self) -> dict[str, Any]:
        await self._adapter.set_up()
        return {}

    async def _do_begin(self) -> dict[str, Any]:
        await self._adapter.begin()
        return {}

    async def _do_publish(
        self, first: int, most: int, seconds: float, batch: int, keys: int, note: int, delay: float | None = None
    ) -> dict[str, Any]:
        """Publish batches one after the other, until there are `most` messages or the time is over."""
        await self._opened()
        count, start = 0, time.monotonic_ns()
        end = start + int(seconds * 1e9)
        while count < most and time.monotonic_ns() < end:
            size = min(batch, most - count)
            await self._adapter.publish(made(first + count, size, keys, note), delay)
            count += size
        return {"count": count, "start": start, "end": time.monotonic_ns()}

    async def _do_pace(
        self, first: int, rate: float, batch: int, seconds: float, keys: int, note: int
    ) -> dict[str, Any]:
        """Publish batches at a fixed rate, whether or not the previous ones have been committed."""
        await self._opened()
        interval, ticks, late = batch / rate * 1e9, int(rate * seconds / batch), 0
        async with asyncio.TaskGroup() as group:
            start = time.monotonic_ns()
            for tick in range(ticks):
                due = start + int(tick * interval)
                if (ahead := due - time.monotonic_ns()) > 0:
                    await asyncio.sleep(ahead / 1e9)
                late = max(late, time.monotonic_ns() - due)
                group.create_task(self._adapter.publish(made(first + tick * batch, batch, keys, note)))
            end = start + int(ticks * interval)
            await asyncio.sleep(max(0.0, (end - time.monotonic_ns()) / 1e9))
        return {"count": ticks * batch, "start": start, "end": end, "late_ms": late / 1e6}

    async def _do_late(self, first: int, keys: int, note: int) -> dict[str, Any]:
        """Publish a message in a transaction that stays open, and another one by itself after it."""
        await self._opened()
        opened = asyncio.Event()

        async def late() -> None:
            async with self._adapter.open_transaction(made(first, 1, keys, note)):
                opened.set()
                await self._recorder.release.wait()

        self._late = asyncio.create_task(late())
        await asyncio.wait([self._late, asyncio.create_task(opened.wait())], return_when=asyncio.FIRST_COMPLETED)
        if self._late.done():
            await self._late
        self._second = asyncio.ensure_future(self._adapter.publish(made(first + 1, 1, keys, note)))
        done, _ = await asyncio.wait([self._second], timeout=PATIENCE)
        return {"waits": not done}

    async def _do_commit(self) -> dict[str, Any]:
        """Commit the transaction of `late`."""
        self._recorder.release.set()
        await asyncio.gather(self._late, self._second)
        return {}

    async def _do_remaining(self) -> dict[str, Any]:
        await self._opened()
        return {"remaining": await self._adapter.remaining()}

    async def _do_stored(self) -> dict[str, Any]:
        await self._opened()
        return {"stored": await self._adapter.stored()}

    async def _do_close(self) -> dict[str, Any]:
        await self._publishing.aclose()
        self._open = False
        return {}

    async def _do_consume(
        self, reader: int, mode: str, trace: str, effects: str | None = None, seconds: float = 0.0, held: int = 0
    ) -> dict[str, Any]:
        self._trace = Path(trace)
        write: Write | None = None
        if effects is not None:
            from benchmarks.peers.process import sql  # peers with servers of their own need no Postgres

            connections = await self._publishing.enter_async_context(sql.pool(effects, 16))
            write = connections.execute
        handler = Handler(mode, self._recorder, write, seconds=seconds, held=held)
        self._consuming = asyncio.create_task(self._adapter.consume(handler, reader, self._stop))
        self._consuming.add_done_callback(self._ended)
        self._progress = asyncio.create_task(self._report())
        return {}

    async def _do_count(self) -> dict[str, Any]:
        return {"handled": self._recorder.handled}

    async def _do_release(self) -> dict[str, Any]:
        self._recorder.release.set()
        return {}

    async def _do_stop(self) -> dict[str, Any]:
        self._stop.set()
        if self._consuming is not None:
            await asyncio.wait([self._consuming])
            self._progress.cancel()
        self._recorder.write(self._trace)
        with suppress(Exception):
            await self._publishing.aclose()
        return {"handled": self._recorder.handled}

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._stop.is_set():
            say({"failed": "".join(traceback.format_exception(error, limit=-8))})

    async def _report(self) -> None:
        last = 0
        while True:
            if (handled := self._recorder.handled) != last:
                say({"handled": handled})
                last = handled
            await asyncio.sleep(PROGRESS_EVERY)

    async def _opened(self) -> None:
        if not self._open:
            self._publishing = AsyncExitStack()
            await self._publishing.enter_async_context(self._adapter.publisher())
            self._open = True


def made(first: int, count: int, keys: int, note: int) -> list[Message]:
    now = time.monotonic_ns()
    return [message(number, keys, note, now) for number in range(first, first + count)]


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    name, given = sys.argv[1], json.loads(sys.argv[2])
    runner: Callable[[Any], None] = asyncio.run
    with suppress(ImportError):
        import uvloop

        runner = uvloop.run
    module = importlib.import_module(f"benchmarks.peers.adapters.{name}")
    adapter: Adapter = module.Peer(given.pop("url"), given.pop("settings"), **given)
    runner(Program(adapter).run())


if __name__ == "__main__":
    main()
