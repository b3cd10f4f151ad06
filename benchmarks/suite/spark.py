"""spark: heavy transforms as handlers, streams as DataFrames, archives and writes, in one warm session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.checks import expect, settled
from benchmarks.harness import STREAM, Bench, Options, bench, files_on_disk
from benchmarks.payloads import SMALL_NOTE, Keys, bytes_of
from benchmarks.processor_time import Meter, postmaster
from benchmarks.report import Result, figures
from benchmarks.suite.filling import fill
from benchmarks.suite.spark_crew import Done, SparkCrew, spark_crew
from benchmarks.suite.spark_memory import memory
from benchmarks.timing import Measured
from headrace import store

KEYS = Keys(100_000)
CONF = {"spark.driver.memory": "1g"}
GROUPS = 1000

_SUMS = """
    select sum((data ->> 'orders')::bigint), sum((data ->> 'numbers')::numeric), count(*) from headrace_streams."{stream}"
"""
_LAST_SUMS = """
    select sum((data ->> 'orders')::bigint), sum((data ->> 'numbers')::numeric) from (
        select distinct on (key) data from headrace_streams."{stream}" order by key, seq desc) as last
"""
_NUMBERS = """
    select count(*), count(distinct number), min(number), max(number) from (
        select (data ->> 'number')::bigint as number from headrace_streams."{stream}") as all_of_them
"""


async def spark(options: Options) -> Result:
    """Transform 1,000,000 messages in a Spark handler. Read, archive, replay, aggregate and write as many. Memory."""
    count = options.count(1_000_000, 20_000)
    batches = 3 if options.quick else 10
    parts = Parts(count, batches)
    async with spark_crew(CONF) as crew:
        async with _place(options, count) as (place, files):
            takes, bounded = await memory(crew, place.dsn, count, batches, GROUPS)
            await _warm(crew, place, files, count)
        for _ in range(options.times(3, 1)):
            async with _place(options, count) as (place, files):
                await parts.run(crew, place, files)
        ready = crew.ready
    return Result(
        benchmark="spark",
        about="messages through a Spark handler: JSON parsed, grouped, the results published",
        measured=parts.measured["handler"],
        limit_is="the same session and function, on ranges of a plain table that ADBC reads, the results in a bare COPY",
        variants={**{name: figures(one) for name, one in parts.measured.items() if name != "handler"}, **parts.in_spark(),
                  **parts.alone(), "lease_to_dataframe": parts.lease(), "memory": takes},
        details={**parts.details(), "session_seconds": ready.seconds},
        settings={
            "messages": count,
            "keys": KEYS.count,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "max_rows": parts.rows,
            "groups": GROUPS,
            "master": "local[2]",
            **CONF,
            **ready.versions,
            "repeats": f"{options.times(3, 1)}, after one of handlers, two reads of each source and an archive that are not counted",
        },
        checks=[*bounded, *parts.checks],
    )  # fmt: skip


class Parts:
    """The parts that are measured in each repeat, on a separate database."""

    def __init__(self, count: int, batches: int) -> None:
        self.count = count
        self.rows = -(-count // batches)
        names = ("handler", "handler_typed", "read", "archive", "write")
        self.measured = {name: Measured(samples=[], limit_samples=[]) for name in names}
        self.checks: list[str] = []
        self._alone: dict[str, list[float]] = {"replay": [], "aggregate": []}
        self._source: dict[str, list[float]] = {"read": [], "write": []}  # rates of the bare data source
        self._lease: dict[str, list[float]] = {"seconds": [], "seconds_until_read": [], "bare_seconds": []}
        self._cpu: dict[str, dict[str, float]] = {}

    async def run(self, crew: SparkCrew, place: Bench, files: Path) -> None:
        """Run one repeat."""
        self.checks = [
            await self._handler(crew, place, "handler", typed=False),
            await self._handler(crew, place, "handler_typed", typed=True),
            await self._leased(crew, place),
            await self._read(crew, place),
            await self._archived(crew, place, files),
            await self._written(crew, place, files),
            await self._replayed(crew, place, files),
            await self._aggregated(crew, place, files),
        ]

    def alone(self) -> dict[str, dict[str, Any]]:
        """The parts that have no raw limit."""
        return {name: {"rate": median(rates), "samples": rates} for name, rates in self._alone.items()}

    def in_spark(self) -> dict[str, dict[str, Any]]:
        """Reads and writes beside those of the bare data source, in the same session."""
        beside = {name: Measured(self.measured[name].samples, rates) for name, rates in self._source.items()}
        return {f"{name}_in_spark": figures(one) for name, one in beside.items()}

    def details(self) -> dict[str, Any]:
        """The duration of each part, and of the last repeat the CPU time by process, in µs per message."""
        seconds = {name: self.count / one.rate for name, one in self.measured.items()}
        return {"seconds": seconds, "cpu_us_per_message": self._cpu}

    def lease(self) -> dict[str, Any]:
        """Durations of a lease in seconds, not rates."""
        return {"rows": self.rows, **{name: median(times) for name, times in self._lease.items()}, "samples": self._lease["seconds"]}  # fmt: skip

    async def _handler(self, crew: SparkCrew, place: Bench, name: str, *, typed: bool) -> str:
        into, given = f"{name}_results", {"max_rows": self.rows, "groups": GROUPS}
        done = await self._do(name, crew, place, "handle", name=name, into=into, typed=typed, **given)
        orders, numbers, results = await _row(place, _SUMS, into)
        expect((orders, int(numbers)), (self.count, _sum(self.count)), f"orders and numbers in the results of {name}")
        result = await settled(place.database, STREAM, name)
        self._took(name, done.seconds)
        if typed:
            self.measured[name].limit_samples.append(self.measured["handler"].limit_samples[-1])
        else:
            bare = await crew.do("bare_handle", place.dsn, self.count, **given)
            self.measured[name].limit_samples.append(self.count / bare.seconds)
        return f"{result}; {results:,} results from {done.found['batches']} batches hold each message once"

    async def _leased(self, crew: SparkCrew, place: Bench) -> str:
        first = self.count - self.rows + 1
        done = await crew.do("lease", place.dsn, self.rows, name="leased", first=first)
        self._lease["seconds"].append(done.seconds)
        self._lease["seconds_until_read"].append(done.found["until_read"])
        bare = await crew.do("bare_lease", place.dsn, self.rows, first=first)
        self._lease["bare_seconds"].append(bare.seconds)
        return f"a job read {self.rows:,} rows of the one batch that was leased"

    async def _read(self, crew: SparkCrew, place: Bench) -> str:
        done = await self._do("read", crew, place, "read")
        seqs, size = await place.database.fetchrow(
            f'select sum(seq), sum(octet_length(data::text)) from headrace_streams."{STREAM}"'
        )
        found = (done.found["rows"], done.found["seqs"], done.found["bytes"])
        expect(found, (self.count, int(seqs), int(size)), "rows, the sum of their seqs, and bytes that were read")
        self._took("read", done.seconds)
        bare = await crew.do("bare_read", place.dsn, self.count)
        expect(bare.found["rows"], self.count, "rows of the plain table")
        self.measured["read"].limit_samples.append(self.count / bare.seconds)
        plain = await crew.do("plain_read", place.dsn, self.count)
        expect(plain.found["rows"], self.count, "rows that the bare data source read")
        self._source["read"].append(self.count / plain.seconds)
        return f"{self.count:,} rows were read, with all of their bytes"

    async def _archived(self, crew: SparkCrew, place: Bench, files: Path) -> str:
        path = str(files / "archive")
        done = await self._do("archive", crew, place, "archive", path=path)
        found = (await crew.do("check_archive", place.dsn, self.count, path=path)).found
        seqs = await place.database.fetchval(f'select sum(seq) from headrace_streams."{STREAM}"')
        wanted = {"rows": self.count, "different": self.count, "seqs": int(seqs)}
        expect(found, wanted, "what pyarrow finds in the archive")
        self._took("archive", done.seconds)
        bare = await crew.do("bare_archive", place.dsn, self.count, path=str(files / "bare.parquet"))
        self.measured["archive"].limit_samples.append(self.count / bare.seconds)
        return f"pyarrow finds {self.count:,} different seqs in {done.found['files']} files of the archive"

    async def _written(self, crew: SparkCrew, place: Bench, files: Path) -> str:
        await store.create_stream(place.database, "written")
        done = await self._do("write", crew, place, "write", path=str(files / "archive"), into="written")
        await self._all_in(place, "written")
        self._took("write", done.seconds)
        bare = await crew.do("bare_write", place.dsn, self.count, path=str(files / "archive"))
        self.measured["write"].limit_samples.append(self.count / bare.seconds)
        plain = await crew.do("plain_write", place.dsn, self.count, path=str(files / "archive"))
        self._source["write"].append(self.count / plain.seconds)
        return f"{self.count:,} different messages were written"

    async def _replayed(self, crew: SparkCrew, place: Bench, files: Path) -> str:
        await store.create_stream(place.database, "replayed")
        done = await self._do("replay", crew, place, "replay", path=str(files / "replay"), into="replayed")
        await self._all_in(place, "replayed")
        self._alone["replay"].append(self.count / done.seconds)
        return f"{self.count:,} different messages were replayed in {done.found['batches']} batches"

    async def _aggregated(self, crew: SparkCrew, place: Bench, files: Path) -> str:
        await store.create_stream(place.database, "aggregated")
        done = await self._do("aggregate", crew, place, "aggregate", path=str(files / "aggregate"), into="aggregated")
        orders, numbers = await _row(place, _LAST_SUMS, "aggregated")
        expect((orders, int(numbers)), (self.count, _sum(self.count)), "orders and numbers in the aggregates")
        self._alone["aggregate"].append(self.count / done.seconds)
        return f"the last aggregates of each key and window hold {self.count:,} messages, each once"

    async def _do(self, what: str, crew: SparkCrew, place: Bench, job: str, **given: Any) -> Done:
        """Run a job over all messages, and measure its CPU time: in Python, in Java with its Pythons, in Postgres."""
        postgres = postmaster(await place.database.fetchval("select pg_backend_pid()"))
        meter = Meter(worker=crew.pid, java=crew.ready.java, postgres=postgres)
        done = await crew.do(job, place.dsn, self.count, **given)
        used = meter.read()
        used["worker"] -= used["java"]  # it is the worker's child
        groups = ("worker", "java", "postgres")
        self._cpu[what] = {group: used[group] / self.count * 1e6 for group in groups if group in used}
        return done

    def _took(self, name: str, seconds: float) -> None:
        self.measured[name].samples.append(self.count / seconds)

    async def _all_in(self, place: Bench, stream: str) -> None:
        found = tuple(await _row(place, _NUMBERS, stream))
        expect(
            found,
            (self.count, self.count, 0, self.count - 1),
            f"messages in {stream!r}, their different numbers, and the first and last",
        )


async def _warm(crew: SparkCrew, place: Bench, files: Path, count: int) -> None:
    """Warm up what handlers have not: Spark's workers in Python, and the code that reads and writes files."""
    for _ in range(2):
        await crew.do("read", place.dsn, count)
        await crew.do("plain_read", place.dsn, count)
    await crew.do("archive", place.dsn, count, path=str(files / "archive"))


@asynccontextmanager
async def _place(options: Options, count: int) -> AsyncIterator[tuple[Bench, Path]]:
    """A database with the messages, and a directory on the disk of embedded databases. Both are deleted at the end."""
    async with bench(options) as place, files_on_disk(place) as files:
        await fill(place, KEYS, count)
        yield place, files


async def _row(place: Bench, query: str, stream: str) -> Any:
    return await place.database.fetchrow(query.format(stream=stream))


def _sum(count: int) -> int:
    """The sum of the numbers from 0 to below `count`."""
    return count * (count - 1) // 2
