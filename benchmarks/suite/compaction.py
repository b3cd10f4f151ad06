"""compaction: repeated updates of the same keys, each replacing the previous one, and the growth of the table."""

from __future__ import annotations

import random

import anyio

from benchmarks.checks import CheckFailed
from benchmarks.harness import Bench, Options, bench
from benchmarks.payloads import SMALL_NOTE, Keys, batches, bytes_of
from benchmarks.report import Result
from benchmarks.timing import Measured, Stopwatch
from headrace import App, store
from headrace.model.specs import StreamSpec

STREAM = "latest"
TABLE = f'headrace_streams."{STREAM}"'
PLAIN = "plain_latest"
KEYS = 10_000
BATCH = 100
SAMPLE = 0.25
MOST, MOST_QUICK = 3.0, 12.0
"""Maximum growth of the table as a factor: dead rows remain beside the live ones from one vacuum to the next."""


async def compaction(options: Options) -> Result:
    """Publish 2 million updates over 10,000 keys into a stream with one message per key, in batches of 100."""
    count = options.count(2_000_000, 60_000)
    texts = [batch.texts for batch in batches(Keys(1), 20_000, BATCH)]
    chance = random.Random(1)
    names = [[f"orders.eu.{n}" for n in chance.sample(range(KEYS), BATCH)] for _ in range(1_000)]
    most = MOST_QUICK if options.quick else MOST
    measured = Measured()
    first: list[int] = []
    sizes: list[int] = []
    for _ in range(options.times(3, 1)):
        async with bench(options) as place, App(place.dsn).running():
            run = _Updates(place, names, texts, most)
            measured.samples.append(await run.into_stream(count))
            first.append(run.first_size)
            sizes += run.sizes
            measured.limit_samples.append(await run.into_table(min(count, 200_000)))
    return Result(
        benchmark="compaction",
        about=f"{count:,} updates of {KEYS:,} keys; the table holds the newest of each",
        measured=measured,
        limit_is=f"bare `insert … on conflict do update` of {BATCH} rows, keys in order, a table with the same indexes",
        details={
            "size_of_the_keys_mb": max(first) / 1e6,
            "size_min_mb": min(sizes) / 1e6,
            "size_max_mb": max(sizes) / 1e6,
        },
        settings={
            "messages": count,
            "batch": BATCH,
            "connections": 1,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "keys": KEYS,
            "size_sampled_every_seconds": SAMPLE,
            "repeats": options.times(3, 1),
        },
        checks=[
            f"in the end there are {KEYS:,} messages, one for each key, each the last that was published of it",
            f"with its indexes the table never had more than {most:g} times the size that its keys take",
        ],
    )


class _Updates:
    def __init__(self, place: Bench, names: list[list[str]], texts: list[list[str]], most: float) -> None:
        self.first_size = 0
        self.sizes: list[int] = []
        self._database = place.database
        self._names = names
        self._most = most
        self._texts = texts

    async def into_stream(self, count: int) -> float:
        await store.create_stream(self._database, StreamSpec(name=STREAM, one_message_per_key=True))
        for start in range(0, KEYS, 1_000):
            keys = [f"orders.eu.{n}" for n in range(start, start + 1_000)]
            await store.publish_many(self._database, STREAM, keys, self._texts[0] * 10)
        self.first_size = await self._size(TABLE)
        newest: dict[str, str] = {}
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            watch = Stopwatch()
            for number in range(count // BATCH):
                names, texts = self._batch(number)
                await store.publish_many(self._database, STREAM, names, texts)
            rate = count / watch.seconds()
            group.cancel_scope.cancel()
        for number in range(count // BATCH):
            newest.update(zip(*self._batch(number), strict=True))
        await self._check(newest)
        return rate

    def _batch(self, number: int) -> tuple[list[str], list[str]]:
        return self._names[number % len(self._names)], self._texts[number % len(self._texts)]

    async def _watch(self) -> None:
        while True:
            self.sizes.append(await self._size(TABLE))
            await anyio.sleep(SAMPLE)

    async def _size(self, table: str) -> int:
        size: int = await self._database.fetchval("select pg_total_relation_size($1::text::regclass)", table)
        return size

    async def _check(self, newest: dict[str, str]) -> None:
        rows = {row["key"]: row["data"] for row in await self._database.fetch(f"select key, data from {TABLE}")}
        if len(rows) != KEYS or any(rows[key] != text for key, text in newest.items()):
            raise CheckFailed(f"The table holds {len(rows)} messages, and they are not the last of each key.")
        if max(self.sizes) > self._most * self.first_size:
            raise CheckFailed(f"The table had {max(self.sizes):,} bytes, and its keys take {self.first_size:,}.")

    async def into_table(self, count: int) -> float:
        """The same updates in a plain table. They must be sorted by key."""
        await self._database.fetch(
            f"create table {PLAIN} (seq bigserial primary key, created_at timestamptz default clock_timestamp(),"
            ' key text collate "C" unique, data json)'
        )
        batches_ = [
            [list(column) for column in zip(*sorted(zip(*self._batch(n), strict=True)), strict=True)]
            for n in range(count // BATCH)
        ]
        watch = Stopwatch()
        for keys, texts in batches_:
            await self._database.fetch(
                f"""insert into {PLAIN} (key, data) select * from unnest($1::text[], $2::json[]) on conflict (key)
                    do update set seq = excluded.seq, created_at = clock_timestamp(), data = excluded.data""",
                keys,
                texts,
            )
        return count / watch.seconds()
