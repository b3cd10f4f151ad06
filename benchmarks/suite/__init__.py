"""The benchmarks by name, in the order in which `all` runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.harness import Options
from benchmarks.report import Result
from benchmarks.suite.lease import lease
from benchmarks.suite.publish import publish

SUITE: dict[str, Callable[[Options], Awaitable[Result]]] = {
    benchmark.__name__: benchmark for benchmark in (publish, lease)
}
