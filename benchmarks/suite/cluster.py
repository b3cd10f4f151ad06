"""cluster: reading and writing with one and two executors of a standalone cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio

from benchmarks.checks import expect
from benchmarks.harness import STREAM, Bench, Options, bench, files_on_disk
from benchmarks.payloads import SMALL_NOTE, Keys, bytes_of
from benchmarks.processor_time import Meter, postmaster
from benchmarks.report import Result, figures
from benchmarks.suite.filling import fill
from benchmarks.suite.spark_crew import Done, SparkCrew
from benchmarks.suite.spark_nodes import CONF, Nodes, cluster_crew, cluster_nodes
from benchmarks.timing import Measured
from headrace import store

KEYS = Keys(100_000)
EXECUTORS = 1, 2
_SUM = 'select count(*), sum(seq), sum(octet_length(data::text)) from headrace_streams."{stream}"'
_TEXTS = 'select count(*), count(distinct data::text) from headrace_streams."{stream}"'
_BACKENDS = (
    "select count(*) from pg_stat_activity where datname = current_database() and backend_type = 'client backend'"
)


async def cluster(options: Options) -> Result:
    """Read and write 1,000,000 messages with 1 and 2 executors of a standalone cluster."""
    count, times = options.count(1_000_000, 20_000), options.times(3, 1)
    parts: dict[int, Parts] = {}
    async with cluster_nodes(max(EXECUTORS)) as running, bench(options) as place, files_on_disk(place) as files:
        await fill(place, KEYS, count)
        for executors in EXECUTORS:
            parts[executors] = Parts(place, running, files / str(executors), count)
            async with cluster_crew(running, executors) as crew:
                await parts[executors].run(crew, times)
                versions = crew.ready.versions
    first, last = parts[EXECUTORS[0]], parts[EXECUTORS[-1]]
    return Result(
        benchmark="cluster",
        about="a stream is read as a DataFrame by executors of a cluster, and written from Parquet files",
        measured=last.measured["read"],
        limit_is="ADBC reads a plain table over one connection, on the driver; for `write` COPY from the same files",
        variants={
            f"{name}_{executors}": {**figures(one.measured[name]), "cpu_us_per_message": one.cpu[name]}
            for executors, one in parts.items()
            for name in ("read", "write")
        },
        settings={
            "messages": count,
            "keys": KEYS.count,
            "payload_bytes": bytes_of(SMALL_NOTE),
            "cores_per_executor": 1,
            **CONF,
            **versions,
            "repeats": f"{times}, after {WARM} reads and writes that are not counted",
        },
        checks=[*first.checks, *last.checks],
    )  # fmt: skip


WARM = 2
"""Repeats that are not counted. Java compiles the code of each executor meanwhile."""


class Parts:
    """The measurements with a number of executors.

    Attributes:
        measured: the rates of `read` and `write`, and of their raw limits.
        cpu: for each of them the CPU time of the last repeat by process, in µs per message.
    """

    def __init__(self, place: Bench, running: Nodes, files: Path, count: int) -> None:
        self.measured = {name: Measured(samples=[], limit_samples=[]) for name in ("read", "write")}
        self.cpu: dict[str, dict[str, float]] = {}
        self.checks: list[str] = []
        self._place, self._nodes, self._files, self._count = place, running, files, count

    async def run(self, crew: SparkCrew, times: int) -> None:
        """Measure reading and writing several times."""
        path = {"path": str(self._files)}
        await crew.do("archive", self._place.dsn, self._count, **path)  # the files that are written into a stream
        for number in range(WARM + times):
            counted = number >= WARM
            read, write = await self._read(crew), await self._write(crew, path)
            if counted:
                await self._limit(crew, "read", "bare_read", read)
                await self._limit(crew, "write", "bare_write", write, **path)
                await self._place.database.fetch("drop table plain_copy")
        found = await self._place.database.fetchrow(_SUM.format(stream=STREAM))
        self.checks = [
            f"{self._count:,} messages, {int(found[2]):,} bytes of payloads, were read and written each once"
        ]

    async def _read(self, crew: SparkCrew) -> Done:
        done = await self._do(crew, "read")
        found = await self._place.database.fetchrow(_SUM.format(stream=STREAM))
        read = (done.found["rows"], done.found["seqs"], done.found["bytes"])
        expect(read, tuple(map(int, found)), "rows, the sum of their seqs, and bytes that were read")
        return done

    async def _write(self, crew: SparkCrew, path: dict[str, str]) -> Done:
        database = self._place.database
        await store.create_stream(database, "written")
        await database.fetch("checkpoint")
        done = await self._do(crew, "write", into="written", **path)
        rows = tuple(await database.fetchrow(_TEXTS.format(stream="written")))
        expect(rows, (self._count, self._count), "messages that were written, and different ones")
        await store.delete_stream(database, "written")
        await database.fetch("checkpoint")
        return done

    async def _limit(self, crew: SparkCrew, name: str, job: str, done: Done, **given: Any) -> None:
        bare = await crew.do(job, self._place.dsn, self._count, **given)
        self.measured[name].samples.append(self._count / done.seconds)
        self.measured[name].limit_samples.append(self._count / bare.seconds)

    async def _do(self, crew: SparkCrew, job: str, **given: Any) -> Done:
        """Run a job, and measure the CPU time of the driver, of the executors, and of Postgres."""
        database = self._place.database
        executors = {f"executor_{number}": pid for number, pid in enumerate(self._nodes.workers, 1)}
        backends = await database.fetchval(_BACKENDS)
        meter = Meter(
            driver=crew.pid, postgres=postmaster(await database.fetchval("select pg_backend_pid()")), **executors
        )
        done = await crew.do(job, self._place.dsn, self._count, **given)
        with anyio.fail_after(30):
            while await database.fetchval(_BACKENDS) > backends:  # noqa: ASYNC110 - a backend that has not ended is not counted
                await anyio.sleep(0.01)
        used = meter.read()
        used["executors"] = sum(used.pop(name) for name in executors)
        shown = ("driver", "executors", "postgres")
        self.cpu[job] = {group: used[group] / self._count * 1e6 for group in shown if group in used}
        return done
