"""The adapter: a producer and a consumer in one process, with a line of JSON on stdout for each measurement.

It follows CONTRIBUTING_ADAPTERS.md of the harness. Settings come from the environment, logs go to stderr. It uses only
the public interface of Headrace.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvloop

from headrace import App, HeadraceError

MANIFEST = json.loads(Path(__file__).with_name("adapter.json").read_text(encoding="utf-8"))
KEYS = 10_000
WINDOW = 30
"""Seconds over which latencies are kept."""

_OF_ALL = frozenset({"queue_depth", "producer_target_rate"})
"""Metrics of the whole system. The first of several processes emits them."""

_STEP = math.log(1.001)


class Settings(msgspec.Struct, frozen=True):
    """The harness's request, from its environment variables."""

    database: str
    scenario: str
    mode: str
    rate: float
    rate_file: str | None
    paced_by_harness: bool
    batch: int
    batch_seconds: float
    target_depth: int
    workers: int
    payload: int
    work_seconds: float
    sample_every: int
    queues: int
    instance: int
    ack_wait: float

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        """Read them. Raises `KeyError` if there is no `DATABASE_URL`."""
        get = environment.get
        return cls(
            database=environment["DATABASE_URL"],
            scenario=get("SCENARIO", "long_horizon"),
            mode=get("PRODUCER_MODE", "fixed"),
            rate=float(get("PRODUCER_RATE", "800")),
            rate_file=get("PRODUCER_RATE_CONTROL_FILE"),
            paced_by_harness=get("PRODUCER_PACING", "adapter") == "harness",
            batch=max(1, int(get("PRODUCER_BATCH_MAX", "128"))),
            batch_seconds=max(1.0, float(get("PRODUCER_BATCH_MS", "25"))) / 1000,
            target_depth=int(get("TARGET_DEPTH", "1000")),
            workers=int(get("WORKER_COUNT", "32")),
            payload=int(get("JOB_PAYLOAD_BYTES", "256")),
            work_seconds=float(get("JOB_WORK_MS", "1")) / 1000,
            sample_every=int(get("SAMPLE_EVERY_S", "5")),
            queues=max(1, int(get("BENCH_QUEUE_COUNT", "1"))),
            instance=int(get("BENCH_INSTANCE_ID", "0")),
            ack_wait=float(get("BENCH_ACK_WAIT_S", "10")),
        )

    def target_rate(self) -> float:
        """Return the jobs per second that the harness wants now. It changes them in a file."""
        try:
            return float(Path(self.rate_file).read_text(encoding="utf-8")) if self.rate_file else self.rate
        except (OSError, ValueError):
            return self.rate

    def streams(self) -> list[str]:
        """Return the streams, one for each queue."""
        return ["jobs"] if self.queues == 1 else [f"jobs_{number}" for number in range(self.queues)]


class Job(msgspec.Struct):
    """A payload. `created_at` is the Unix time of the call that published it, in seconds."""

    seq: int
    created_at: float
    padding: str


class Latencies:
    """The latencies of the last 30 seconds, as a histogram for each second, with three significant digits."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Counter[int]]] = deque(maxlen=WINDOW)

    def add(self, seconds: float, now: float) -> None:
        """Add a latency in seconds."""
        if not self._seconds or self._seconds[-1][0] != int(now):
            self._seconds.append((int(now), Counter()))
        self._seconds[-1][1][round(math.log(max(seconds, 1e-6)) / _STEP)] += 1

    def percentiles(self, now: float) -> dict[str, float]:
        """Return p50, p95 and p99 in milliseconds. They are 0 if there was nothing."""
        counts: Counter[int] = sum((counted for second, counted in self._seconds if second > now - WINDOW), Counter())
        total, seen, found = counts.total(), 0, dict.fromkeys(("p50", "p95", "p99"), 0.0)
        left = {name: math.ceil(int(name[1:]) / 100 * total) for name in found}
        for bucket in sorted(counts):
            seen += counts[bucket]
            for name in [name for name, rank in left.items() if seen >= rank]:
                found[name] = math.exp(bucket * _STEP) * 1000
                del left[name]
        return found


class Adapter:
    """A producer, a consumer and a sampler, until it is stopped."""

    def __init__(self, settings: Settings) -> None:
        self.stopping = asyncio.Event()
        self._settings = settings
        self._app = App(settings.database, streams=settings.streams(), shutdown_timeout=3)
        self._claims, self._ends, self._publishes = Latencies(), Latencies(), Latencies()
        self._enqueued = self._completed = self._depth = 0
        self._target = 0.0
        for stream in settings.streams():
            self._app.consumer(
                stream,
                name="bench",
                concurrency=settings.workers,
                max_ack_pending=max(1000, 4 * settings.workers),
                ack_wait=settings.ack_wait,
            )(self._handle)

    async def run(self) -> None:
        """Work until it is stopped."""
        async with self._app.running():
            self._emit(
                kind="descriptor",
                event_tables=MANIFEST["event_tables"],
                extensions=MANIFEST["extensions"],
                version=version("headrace"),
                schema_version=version("headrace"),
                db_name=urlsplit(self._settings.database).path.lstrip("/"),
                started_at=_now(),
            )
            tasks = [asyncio.create_task(part) for part in (self._produce(), self._observe(), self._sample())]
            stopped = asyncio.create_task(self.stopping.wait())
            done, rest = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            for task in done:
                task.result()

    async def _handle(self, job: Job) -> None:
        self._claims.add(time.time() - job.created_at, time.time())
        await asyncio.sleep(self._settings.work_seconds)
        self._completed += 1
        self._ends.add(time.time() - job.created_at, time.time())

    async def _produce(self) -> None:
        streams, padding = self._settings.streams(), "x" * max(0, self._settings.payload - 60)
        seq = batches = 0
        async for size in self._sizes():
            created = time.time()
            jobs = [(f"jobs.{number % KEYS}", Job(number, created, padding)) for number in range(seq, seq + size)]
            try:
                await self._app.publish_many(streams[batches % len(streams)], jobs)
            except HeadraceError as error:  # the database is unavailable: the load continues, and these are not counted
                print(f"publish failed: {error}", file=sys.stderr, flush=True)
                await asyncio.sleep(0.1)
                continue
            self._publishes.add(time.time() - created, time.time())
            seq, batches = seq + size, batches + 1
            self._enqueued += size

    async def _sizes(self) -> AsyncIterator[int]:
        """Yield the sizes of batches, each when it is due."""
        if self._settings.mode == "depth-target":
            async for size in self._to_depth():
                yield size
        elif self._settings.paced_by_harness:
            async for size in self._tokens():
                yield size
        else:
            async for size in self._at_rate():
                yield size

    async def _to_depth(self) -> AsyncIterator[int]:
        while True:
            size = min(self._settings.batch, self._settings.target_depth - self._depth)
            if size > 0:
                self._depth += size  # until it is read again
                yield size
            else:
                await asyncio.sleep(0.05)

    async def _at_rate(self) -> AsyncIterator[int]:
        """Credit the load by the time that has really passed, however long a publish took."""
        credit, last = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(self._settings.batch_seconds)
            now, self._target = time.monotonic(), self._settings.target_rate()
            credit, last = credit + self._target * (now - last), now
            while credit >= 1:
                size = min(self._settings.batch, int(credit))
                credit -= size
                yield size

    async def _tokens(self) -> AsyncIterator[int]:
        """Yield what the harness asks for by lines `ENQUEUE n` on stdin. At its end nothing more is published."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self._target = self._settings.target_rate()
            word, _, count = line.decode().strip().partition(" ")
            left = int(count) if word == "ENQUEUE" and count.isdecimal() else 0
            while left > 0:
                yield min(left, self._settings.batch)
                left -= self._settings.batch
        await self.stopping.wait()

    async def _observe(self) -> None:
        """Read the depth of the queues once a second."""
        while True:
            try:
                infos = [await self._app.admin.consumer(stream, "bench") for stream in self._settings.streams()]
                self._depth = sum(info.lag for info in infos)
            except HeadraceError as error:
                print(f"the depth can't be read: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(0.2 if self._settings.mode == "depth-target" else 1)

    async def _sample(self) -> None:
        """Emit the metrics at each multiple of the interval of the wall clock."""
        every = self._settings.sample_every
        enqueued = completed = 0
        while True:
            await asyncio.sleep(every - time.time() % every)
            now = time.time()
            for name, latencies in (
                ("claim", self._claims),
                ("end_to_end", self._ends),
                ("producer_call", self._publishes),
            ):
                for part, value in latencies.percentiles(now).items():
                    self._metric(f"{name}_{part}_ms", value, WINDOW)
            self._metric("enqueue_rate", (self._enqueued - enqueued) / every, every)
            self._metric("completion_rate", (self._completed - completed) / every, every)
            self._metric("queue_depth", self._depth, 0)
            self._metric("producer_target_rate", self._target, 0)
            enqueued, completed = self._enqueued, self._completed

    def _metric(self, name: str, value: float, window: float) -> None:
        if name in _OF_ALL and self._settings.instance:
            return
        about = {"kind": "adapter", "subject_kind": "adapter", "subject": ""}
        self._emit(t=_now(), **about, metric=name, value=value, window_s=window)

    def _emit(self, **fields: Any) -> None:
        record = {"system": MANIFEST["system"], "instance_id": self._settings.instance, **fields}
        print(json.dumps(record), flush=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def main() -> int:
    """Run the adapter. Returns the exit status."""
    settings = Settings.read(os.environ)
    if settings.scenario == "migrate_only":
        async with App(settings.database, streams=settings.streams()):
            return 0
    if settings.scenario != "long_horizon":
        print(f"Unknown SCENARIO {settings.scenario!r}. Use long_horizon or migrate_only.", file=sys.stderr)
        return 2
    adapter = Adapter(settings)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, adapter.stopping.set)
    await adapter.run()
    return 0


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
