"""driver: the memory of a driver on a cluster, whose streams are read and written by executors."""

from __future__ import annotations

from benchmarks.captured import Memory
from benchmarks.checks import CheckFailed, expect
from benchmarks.harness import MESSAGES, Bench, Options, bench
from benchmarks.report import Result
from benchmarks.suite.spark_crew import SparkCrew
from benchmarks.suite.spark_nodes import CONF, cluster_crew, cluster_nodes
from benchmarks.timing import Measured
from headrace import store

EXECUTORS = 2
_GROWTH = 100
"""How many times as many messages the memory is measured with."""
_LEVEL = 48.0
"""Maximum growth of the driver's memory in MiB from the few messages to the many, in Python and of Java's live objects."""
_SMALL = """
    insert into {messages} (key, data)
    select 'orders.eu.' || n % 100000, json_build_object('number', n) from generate_series($1::bigint, $2::bigint) as n
"""


async def driver(options: Options) -> Result:
    """Memory of a driver while executors read and copy 100,000 messages, and while they do so with 10,000,000."""
    many = options.count(10_000_000, 200_000)
    few = many // _GROWTH
    async with cluster_nodes(EXECUTORS) as running, bench(options) as place, cluster_crew(running, EXECUTORS) as crew:
        levels = await _levels(crew, place, few, many)
        versions = crew.ready.versions
    rates = {count: count / levels[str(count)]["copy_seconds"] for count in (few, many)}
    return Result(
        benchmark="driver",
        about="a stream of small messages is read, and copied into another stream, by two executors of a cluster",
        measured=Measured([rates[many]], [rates[few]]),
        limit_is=f"the same with {few:,} messages",
        variants=levels,
        settings={"messages": many, "executors": EXECUTORS, "cores_per_executor": 1, **CONF, **versions},
        checks=[f"the driver's memory is level from {few:,} to {many:,} messages, each read and copied once"],
    )


async def _levels(crew: SparkCrew, place: Bench, few: int, many: int) -> dict[str, dict[str, float]]:
    """Read small messages, and write what was read into another stream, first `few` and then `many` of them.

    Returns:
        The driver's memory in MiB, and the durations in seconds, by the number of messages. Raises `CheckFailed` when
        more messages take more memory.
    """
    python, java = Memory(crew.pid), Memory(crew.ready.java)
    found: dict[str, dict[str, float]] = {}
    written = 0
    for count in (few, few, many):  # the first run warms up
        await _add(place, written, count)
        written = count
        await store.create_stream(place.database, "copied")
        python.reset()
        java.reset()
        seconds = {}
        for job, given in (("read", {}), ("copy", {"into": "copied"})):
            seconds[job] = (await crew.do(job, place.dsn, count, **given)).seconds
        copied = await place.database.fetchval('select count(*) from headrace_streams."copied"')
        expect(copied, count, "messages that were copied")
        await store.delete_stream(place.database, "copied")
        heap = (await crew.do("heap", place.dsn, count)).found["mib"]
        found[str(count)] = {
            "python_peak_mib": python.peak(),
            "java_peak_mib": java.peak(),
            "java_live_mib": heap,
            **{f"{job}_seconds": took for job, took in seconds.items()},
        }
    for name in ("python_peak_mib", "java_live_mib"):
        before, after = found[str(few)][name], found[str(many)][name]
        if after > before + _LEVEL:
            raise CheckFailed(
                f"{name} of the driver was {before:.0f} with {few:,} messages and {after:.0f} with {many:,}."
            )
    return found


async def _add(place: Bench, there: int, count: int) -> None:
    """Add small messages to the stream until it has `count`, a million in each transaction."""
    for first in range(there, count, 1_000_000):
        await place.database.fetch(_SMALL.format(messages=MESSAGES), first, min(first + 1_000_000, count) - 1)
    await place.rest(MESSAGES)
