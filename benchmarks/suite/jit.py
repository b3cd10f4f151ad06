"""jit: other benchmarks with `jit = on`, against the same with `jit = off`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import prod
from statistics import median
from typing import Any

import asyncpg
import msgspec

from benchmarks.checks import CheckFailed
from benchmarks.harness import Options
from benchmarks.report import Result
from benchmarks.suite.drain import drain
from benchmarks.suite.fanout import fanout
from benchmarks.suite.hotkeys import hotkeys
from benchmarks.suite.http import http
from benchmarks.suite.latency import latency
from benchmarks.suite.lease import lease
from benchmarks.suite.publish import publish
from benchmarks.suite.push import push
from benchmarks.suite.transactional import transactional
from benchmarks.suite.work import work
from benchmarks.timing import Measured

COMPARED: tuple[Callable[[Options], Awaitable[Result]], ...] = (
    publish, lease, drain, work, hotkeys, transactional, fanout, http, push, latency,
)  # fmt: skip


async def jit(options: Options) -> Result:
    """Run other benchmarks with `jit = on` and with `jit = off`, in turn. The server must have been built with LLVM."""
    await _check_compiles(options.server)
    repeats = options.times(3, 1)
    variants: dict[str, dict[str, Any]] = {}
    for benchmark in COMPARED:
        measured = Measured()
        for round_ in range(repeats):
            # The one that comes first changes, since the second one may find a warmer machine.
            for setting in ("on", "off") if round_ % 2 == 0 else ("off", "on"):
                result = await benchmark(msgspec.structs.replace(options, jit=setting, repeats=1))
                samples = measured.samples if setting == "on" else measured.limit_samples
                samples.append(_figure(result))
        ratios = [on / off for on, off in zip(measured.samples, measured.limit_samples, strict=True)]
        variants[benchmark.__name__] = {
            "rate": measured.rate, "limit": measured.limit, "ratio": median(ratios), "ratios": ratios,
        }  # fmt: skip
    return Result(
        benchmark="jit",
        about="the geometric mean of the rates with `jit = on`, of those with `jit = off`",
        measured=Measured([prod(one["ratio"] for one in variants.values()) ** (1 / len(variants))], [1.0]),
        limit_is="`jit = off`",
        unit="of the rate",
        variants=variants,
        settings={"repeats": repeats},
        checks=["the server compiles expressions", "what each benchmark proves"],
    )


def _figure(result: Result) -> float:
    """The figure of a run for which more is better. Where the pace is given, it is the speed of a message."""
    return result.measured.rate if result.latency is None else 1000 / result.latency["p50_ms"]


async def _check_compiles(server: str) -> None:
    connection = await asyncpg.connect(server)
    try:
        if not await connection.fetchval("select pg_jit_available()"):
            raise CheckFailed(
                "The server was built without LLVM, so `jit` does nothing on it. Name another one with --database."
            )
    finally:
        await connection.close()
