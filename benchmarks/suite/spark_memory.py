"""The memory of a worker with a Spark handler: of its Python process, and of Java, with two sizes of batches, and two backlogs each."""

from __future__ import annotations

from typing import Any

from benchmarks.captured import Memory
from benchmarks.checks import Wrong
from benchmarks.suite.spark_crew import SparkCrew

_MORE = 1.25, 48.0
"""What a larger backlog may add to the peak of the Python process: a quarter, and so many MiB."""


async def memory(crew: SparkCrew, dsn: str, count: int, batches: int, groups: int) -> tuple[dict[str, Any], list[str]]:
    """Let handlers of a fresh process have a part of the stream, and then all of it; first with small batches, then with five times as
    large ones, of which so many are all of it.

    A peak is the system's own count since the handler's start, so nothing between two looks is missed; what a process keeps of an earlier
    run counts, which is why the small ones come first.

    Returns:
        What was found, in MiB, and what was proven of it. Raises `Wrong` when a backlog that is larger takes more.
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
            raise Wrong(
                f"with max_rows={rows} a backlog of {count} took {peaks[1]:.0f} MiB at most, and a third of it {peaks[0]:.0f}."
            )
    return found, ["three times the backlog does not take more memory than that of two batches"]
