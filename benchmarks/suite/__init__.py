"""The benchmarks by name, in the order in which `all` runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.harness import Options
from benchmarks.report import Result
from benchmarks.suite.capture import capture
from benchmarks.suite.cluster import cluster
from benchmarks.suite.compaction import compaction
from benchmarks.suite.console import console
from benchmarks.suite.costs import costs
from benchmarks.suite.crowd import crowd
from benchmarks.suite.drain import drain
from benchmarks.suite.driver import driver
from benchmarks.suite.fanout import fanout
from benchmarks.suite.filter import filter  # noqa: A004 - the word of the field
from benchmarks.suite.governor import governor
from benchmarks.suite.grants import grants
from benchmarks.suite.growth import growth
from benchmarks.suite.hotkeys import hotkeys
from benchmarks.suite.http import http
from benchmarks.suite.jit import jit
from benchmarks.suite.latency import latency
from benchmarks.suite.lease import lease
from benchmarks.suite.memory import memory
from benchmarks.suite.multitude import multitude
from benchmarks.suite.observe import observe
from benchmarks.suite.pinned import pinned
from benchmarks.suite.publish import publish
from benchmarks.suite.push import push
from benchmarks.suite.retention import retention
from benchmarks.suite.scale import scale
from benchmarks.suite.spark import spark
from benchmarks.suite.standstill import standstill
from benchmarks.suite.start import start
from benchmarks.suite.steady import steady
from benchmarks.suite.tenants import tenants
from benchmarks.suite.transactional import transactional
from benchmarks.suite.wal import wal
from benchmarks.suite.work import work

SUITE: dict[str, Callable[[Options], Awaitable[Result]]] = {
    benchmark.__name__: benchmark
    for benchmark in (
        publish,
        lease,
        costs,
        wal,
        grants,
        drain,
        work,
        transactional,
        hotkeys,
        latency,
        steady,
        fanout,
        filter,
        retention,
        compaction,
        pinned,
        standstill,
        growth,
        scale,
        crowd,
        multitude,
        memory,
        governor,
        http,
        push,
        tenants,
        console,
        observe,
        start,
        capture,
        spark,
        cluster,
        driver,
        jit,
    )
}

IN_ALL = [name for name in SUITE if name != "jit"]
"""The benchmarks that `all` runs. `jit` runs others twice, on a server of its own kind."""
