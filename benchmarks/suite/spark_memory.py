"""The memory of a worker with a Spark handler, in Python and in Java, with two batch sizes and two backlogs each."""

from __future__ import annotations

from typing import Any

from benchmarks.captured import Memory
from benchmarks.checks import CheckFailed
from benchmarks.suite.spark_crew import SparkCrew

_MORE = 1.25, 48.0
"""Maximum growth of the Python process's peak with a larger backlog: a factor, and MiB on top."""


async def memory(crew: SparkCrew, dsn: str, count: int, batches: int, groups: int) -> tuple[dict[str, Any], list[str]]:
    """Drain a part of the stream, and then all of it, with the handlers of a fresh process.

    It does so with small batches first, then with batches five times as large, `batches` of which
    are the whole stream. A peak is the system's own count since the handler's start, so none is
    missed between two readings. Memory that a process keeps from an earlier run counts, so the
    small batches come first.

    Returns:
        The memory in MiB, and what was proven of it. Raises `CheckFailed` when a larger backlog takes more.
    """
    python, java = Memory(crew.pid), Memory(crew.ready.java)
    found: dict[str, Any] = {"at_rest": {"python_mib": python.resident(), "java_mib": java.resident()}}
    for rows in (-(-count // (5 * batches)), -(-count // batches)):
        peaks = []
        for backlog in (count * 3 // 10, count):
            name = f"rows_{rows}_of_{backlog}"
            python.reset()
            java.reset()
            done = await crew.do(
                "handle",
                dsn,
                backlog,
                name=name,
                into="memory_results",
                max_rows=rows,
                groups=groups,
                first=count - backlog + 1,
            )
            peaks.append(python.peak())
            found[name] = {"python_peak_mib": peaks[-1], "java_peak_mib": java.peak(), "batches": done.found["batches"]}
        if peaks[1] > peaks[0] * _MORE[0] + _MORE[1]:
            raise CheckFailed(
                f"with max_rows={rows} a backlog of {count} took {peaks[1]:.0f} MiB at most, and a third of it {peaks[0]:.0f}."
            )
    return found, ["three times the backlog does not take more memory than that of two batches"]
