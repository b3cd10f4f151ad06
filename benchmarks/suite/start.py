"""start: the time from starting a worker's process to its first message, and what importing takes of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

from benchmarks import checks, processes
from benchmarks.harness import STREAM, Options, bench
from benchmarks.report import Result
from benchmarks.timing import Measured
from headrace import store

TIMES = 11
"""Starts of each kind, in turn."""

LONGEST_FACTOR = 5.0
"""How much longer a worker may take to its first message than a bare client to its first answer."""

WORKER = ("headrace.cli.main", "run", "benchmarks.first_message:app", "--log-level", "warning")

COMMANDS = {
    "python": ("-c", "pass"),
    "import": ("-c", "import headrace"),
    "import_app": ("-c", "from headrace import App"),
    "help": ("-m", "headrace.cli.main", "--help"),
}
"""Commands that don't need a database."""


async def start(options: Options) -> Result:
    """Start processes repeatedly: workers with a message that waits, bare clients, and commands without a database."""
    times = 2 if options.quick else TIMES
    took: dict[str, list[float]] = {name: [] for name in ("worker", "bare", *COMMANDS)}
    measured = Measured()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    for command in COMMANDS.values():
        _run(*command)
    async with bench(options) as place:
        for number in range(times):
            for name, command in COMMANDS.items():
                took[name].append(_run(*command))
            took["bare"].append(await _first_line("1", "benchmarks.first_answer", place.dsn))
            await store.publish(place.database, STREAM, "a.key", str(number))
            took["worker"].append(await _first_line(str(number), *WORKER, "--database", place.dsn))
    measured.samples += [1 / seconds for seconds in took["worker"]]
    measured.limit_samples += [1 / seconds for seconds in took["bare"]]
    middle = {f"{name}_ms": round(1000 * median(seconds), 1) for name, seconds in took.items()}
    factor = round(median(took["worker"]) / median(took["bare"]), 2)
    if not options.quick:
        checks.expect(factor <= LONGEST_FACTOR, True, f"a worker's start is short ({factor} times, {middle})")
    return Result(
        benchmark="start",
        about="from starting a worker's process until its handler has a message that waited",
        measured=measured,
        limit_is="a process that imports asyncpg, connects, and has the answer to `select 1`",
        unit="starts/s",
        settings={"times": times},
        checks=["each worker handled the message that was published for it"],
        details={**middle, "factor": factor},
    )


def _run(*command: str) -> float:
    """Run `python COMMAND`. Returns the seconds that it took."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


async def _first_line(expected: str, module: str, *arguments: str) -> float:
    """Run a module, and stop it at its first line, which must be `expected`. Returns the seconds until then."""
    began = time.perf_counter()
    async with processes.started(module, *arguments) as process:
        assert process.stdout is not None
        line = await process.stdout.receive()
        seconds = time.perf_counter() - began
        checks.expect(line.decode().strip(), expected, "the first line")
        process.terminate()
        await process.wait()
    return seconds
