"""retention: sustained publishing while the janitor removes the oldest messages, against the same without a limit."""

from __future__ import annotations

import anyio
import msgspec

from benchmarks.checks import CheckFailed
from benchmarks.harness import Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Keys, batches, bytes_of
from benchmarks.report import Result
from benchmarks.timing import Measured, Stopwatch
from headrace import App, store
from headrace.model.specs import StreamSpec

STREAM = "kept"
MESSAGES = f'headrace_streams."{STREAM}"'
BATCH = 100
POOL = 20_000
SAMPLE = 0.1
OVERSHOOT_SECONDS, OVERSHOOT_SECONDS_QUICK = 2.0, 20.0  # a quick run checks only that it works, even on a busy machine


class _Run(msgspec.Struct):
    """The messages published in the measured time, and the sizes of the stream."""

    rate: float
    sizes: list[int]
    removed: int
    proven: list[str]


async def retention(options: Options) -> Result:
    """Publish batches of 100 for 20 seconds into a stream that keeps 128 MB, and into one that keeps everything."""
    seconds = options.duration(20, 3)
    most = 16_000_000 if options.quick else 128_000_000
    texts = [text for batch in batches(Keys(1), POOL, BATCH) for text in batch.texts]
    overshoot = OVERSHOOT_SECONDS_QUICK if options.quick else OVERSHOOT_SECONDS
    measured = Measured()
    runs: list[_Run] = []
    for _ in range(options.times(3, 1)):
        for limited in (True, False):
            async with bench(options) as place, App(place.dsn).running():
                run = await _Publishing(place, texts, most if limited else None, overshoot).run(most, seconds)
            if limited:
                runs.append(run)
                measured.samples.append(run.rate)
            else:
                measured.limit_samples.append(run.rate)
    sizes = [size for run in runs for size in run.sizes]
    return Result(
        benchmark="retention",
        about=f"publishing for {seconds:g} s while all beyond {most / 1e6:g} MB is removed",
        measured=measured,
        limit_is="the same publisher, and a stream that keeps everything",
        details={
            "size_min_mb": min(sizes) / 1e6,
            "size_max_mb": max(sizes) / 1e6,
            "removed": [run.removed for run in runs],
        },
        settings={
            "seconds": seconds,
            "max_storage": most,
            "batch": BATCH,
            "connections": 1,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "keys": "each message has its own",
            "warm_up": "until the stream has reached max_storage, and as much again",
            "size_sampled_every_seconds": SAMPLE,
            "repeats": options.times(3, 1),
        },
        checks=runs[-1].proven,
    )


class _Publishing:
    def __init__(self, place: Bench, texts: list[str], max_storage: int | None, overshoot: float) -> None:
        self._database = place.database
        self._texts = texts
        self._max_storage = max_storage
        self._overshoot = overshoot
        self._published = 0
        self._sizes: list[int] = []

    async def run(self, warm: int, seconds: float) -> _Run:
        """Publish until the stream has `warm` bytes, then as much again, and then for `seconds` seconds."""
        await store.create_stream(self._database, StreamSpec(name=STREAM, max_storage=self._max_storage))
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            while max(self._sizes, default=0) < warm:
                await self._publish()
            for _ in range(0, self._published, BATCH):
                await self._publish()
            self._sizes.clear()
            first, before, watch = await self._first(), self._published, Stopwatch()
            while watch.seconds() < seconds or await self._must_go_on(first, watch.seconds(), seconds):
                await self._publish()
            rate = (self._published - before) / watch.seconds()
            removed = await self._first() - first
            group.cancel_scope.cancel()
        proven = [await self._is_suffix()]
        if self._max_storage is not None:
            proven.append(await self._is_bounded(rate))
            if not removed:
                raise CheckFailed("Nothing was removed while it was measured: measure for longer.")
        return _Run(rate, self._sizes, removed, proven)

    async def _must_go_on(self, first: int, gone: float, seconds: float) -> bool:
        """Whether to extend the run. On a busy machine a short run may end before the janitor's first round."""
        return self._max_storage is not None and gone < 30 * seconds and await self._first() == first

    async def _publish(self) -> None:
        start = self._published % POOL
        keys = [f"n.{number}" for number in range(self._published, self._published + BATCH)]
        self._published += await store.publish_many(self._database, STREAM, keys, self._texts[start : start + BATCH])

    async def _watch(self) -> None:
        while True:
            self._sizes.append(await self._size())
            await anyio.sleep(SAMPLE)

    async def _size(self) -> int:
        size: int = await self._database.fetchval(
            "select headrace_internal.stored_bytes(s) from headrace_internal.streams as s where name = $1", STREAM
        )
        return size

    async def _first(self) -> int:
        first: int = await self._database.fetchval(f"select min(seq) from {MESSAGES}")
        return first

    async def _is_suffix(self) -> str:
        row = await self._database.fetchrow(
            f"select count(*), min(substr(key, 3)::bigint), max(substr(key, 3)::bigint) from {MESSAGES}"
        )
        count, first, last = row
        if last != self._published - 1 or count != last - first + 1:
            raise CheckFailed(
                f"{count} messages remain, from {first} to {last} of {self._published}: that is not the end of it."
            )
        return f"of {self._published:,} messages the last {count:,} remain, every one of them"

    async def _is_bounded(self, rate: float) -> str:
        """Check the size. Messages published before the janitor's next round may come on top of max_storage."""
        assert self._max_storage is not None
        row = await self._database.fetchrow(f"select count(*) from {MESSAGES}")
        each = await self._size() / row[0]
        bound = 1.25 * self._max_storage + self._overshoot * rate * each
        if max(self._sizes) > bound:
            raise CheckFailed(
                f"the stream had {max(self._sizes):,} bytes; at this pace no more than {bound:,.0f} were to be."
            )
        return (
            f"the stream never had more than {max(self._sizes) / 1e6:.1f} MB: max_storage is {self._max_storage / 1e6:g} MB,"
            f" and {self._overshoot:g} s of publishing take {self._overshoot * rate * each / 1e6:.1f}"
        )
