"""driver: the memory of a driver and of its executors on a cluster, where executors read and write streams."""

from __future__ import annotations

from benchmarks.captured import Memory
from benchmarks.checks import CheckFailed, expect
from benchmarks.harness import MESSAGES, Bench, Options, bench
from benchmarks.processor_time import descendants
from benchmarks.report import Result
from benchmarks.suite.spark_crew import SparkCrew
from benchmarks.suite.spark_nodes import CONF, Nodes, cluster_crew, cluster_nodes
from benchmarks.timing import Measured
from headrace import store

EXECUTORS = 2
_GROWTH = 10
"""How many times as many messages the memory is measured with. A tenth of the small ones fills what Spark passes to
Python at a time, and so do `_FEW_LARGE` large ones."""
_FEW_LARGE = 2000
"""The smaller number of large messages, 100 MB for each of two tasks. Spark passes 64 MB to Python at a time."""
_LEVEL = 48.0
"""Maximum growth of each of `_LEVELS` in MiB from the few messages to the many."""
_LEVELS = ("python_peak_mib", "java_live_mib", "executors_python_peak_mib")
LARGE = 100_000
"""Bytes of a large payload."""
_ADD = """
    insert into {messages} (key, data)
    select 'orders.eu.' || n % 100000, {data} from generate_series($1::bigint, $2::bigint) as n
"""
_SMALL = "json_build_object('number', n)"
# The same digits over and over, which take little space on the disk, and all of it in memory.
_LARGE = f"json_build_object('number', n, 'text', repeat(md5(n::text), {LARGE // 32}))"


async def driver(options: Options) -> Result:
    """Memory of a driver and its executors that copy 1,000,000 and 10,000,000 messages, and 2,000 and 10,000 of 100
    kB."""
    many = options.count(10_000_000, 200_000)
    few = many // _GROWTH
    large = _FEW_LARGE * (2 if options.quick else 5)
    async with cluster_nodes(EXECUTORS) as running, cluster_crew(running, EXECUTORS) as crew:
        async with bench(options) as place:
            levels = await _levels(crew, running, place, _SMALL, few, many)
        async with bench(options) as place:
            of_large = await _levels(crew, running, place, _LARGE, _FEW_LARGE, large)
        versions = crew.ready.versions
    rates = {count: count / levels[str(count)]["copy_seconds"] for count in (few, many)}
    return Result(
        benchmark="driver",
        about="a stream of small messages is read, and copied into another stream, by two executors of a cluster",
        measured=Measured([rates[many]], [rates[few]]),
        limit_is=f"the same with {few:,} messages",
        variants={**levels, **{f"{count}_of_{LARGE}_bytes": one for count, one in of_large.items()}},
        settings={
            "messages": many,
            "large_messages": large,
            "large_bytes": LARGE,
            "executors": EXECUTORS,
            "cores_per_executor": 1,
            **CONF,
            **versions,
        },
        checks=[
            f"the memory of the driver and of the executors' Python is level from {few:,} to {many:,} messages, and from"
            f" {_FEW_LARGE:,} to {large:,} of {LARGE:,} bytes, each read and copied once"
        ],
    )


async def _levels(
    crew: SparkCrew, nodes: Nodes, place: Bench, data: str, few: int, many: int
) -> dict[str, dict[str, float]]:
    """Read messages, and write what was read into another stream, first `few` and then `many` of them.

    Args:
        data: the SQL of the payload of message n.

    Returns:
        The memory in MiB, and the durations in seconds, by the number of messages. Raises `CheckFailed` when more
        messages take more memory.
    """
    python, java = Memory(crew.pid), Memory(crew.ready.java)
    found: dict[str, dict[str, float]] = {}
    written = 0
    for count in (few, few, many):  # the first run warms up
        await _add(place, data, written, count)
        written = count
        await store.create_stream(place.database, "copied")
        for one in (python, java, *_below(nodes, "java"), *_below(nodes, "python")):
            one.reset()
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
            "executors_python_peak_mib": _highest(nodes, "python"),
            "executors_java_peak_mib": _highest(nodes, "java"),
            **{f"{job}_seconds": took for job, took in seconds.items()},
        }
    for name in _LEVELS:
        before, after = found[str(few)][name], found[str(many)][name]
        if after > before + _LEVEL:
            raise CheckFailed(f"{name} was {before:.0f} with {few:,} messages and {after:.0f} with {many:,}.")
    return found


def _below(nodes: Nodes, name: str) -> list[Memory]:
    """The executors' processes of this name: `java` or `python`. Spark keeps idle Pythons for a minute."""
    return [Memory(pid) for worker in nodes.workers for pid in descendants(worker, name)]


def _highest(nodes: Nodes, name: str) -> float:
    """The peak of the largest process. Raises `CheckFailed` if there is none."""
    peaks = [one.peak() for one in _below(nodes, name)]
    if not peaks:
        raise CheckFailed(f"no {name} of an executor runs any more, so its memory is not known")
    return max(peaks)


async def _add(place: Bench, data: str, there: int, count: int) -> None:
    """Add messages to the stream until it has `count`, a million in each transaction."""
    for first in range(there, count, 1_000_000):
        last = min(first + 1_000_000, count) - 1
        await place.database.fetch(_ADD.format(messages=MESSAGES, data=data), first, last)
    await place.rest(MESSAGES)
