"""The tiers of the suite, as markers: each test has one.

- `unit`: neither a Postgres server nor another process. `make test-unit` runs these.
- `database`: a database of the Postgres server that all tests share.
- `process`: processes of the test's own, such as commands and servers.
- `spark`: a Spark session.

`long` and `torture` are no tiers. `long` marks tests of many seconds each, which `make test-long` runs, and
`torture` runs of minutes, which only `make torture` runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

UNIT, DATABASE, PROCESS, SPARK = "unit", "database", "process", "spark"

FOLDERS = {
    "spark": SPARK,
    **dict.fromkeys(
        ("benchmarks", "console", "demo", "embedded", "embedding", "pooler", "template", "torture"), PROCESS
    ),
}
"""The tiers of whole folders below `tests`."""

SERVER = frozenset({"server_dsn", "headrace_server"})
"""The fixtures that start the server."""

_STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec"})

_guarded: pytest.Item | None = None
_hooked = False


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test, from its `process` marker, its folder or its fixtures."""
    if item.get_closest_marker(PROCESS):
        return PROCESS
    folder = item.path.relative_to(item.config.rootpath / "tests").parts[0]
    if folder in FOLDERS:
        return FOLDERS[folder]
    return DATABASE if SERVER & set(getattr(item, "fixturenames", ())) else UNIT


@contextmanager
def guarded(item: pytest.Item) -> Iterator[None]:
    """Make the start of a process raise an error during a unit test."""
    global _guarded, _hooked
    if not _hooked:
        sys.addaudithook(_refuse)  # an audit hook can't be removed
        _hooked = True
    _guarded = item if item.get_closest_marker(UNIT) else None
    try:
        yield
    finally:
        _guarded = None


def _refuse(event: str, _arguments: object) -> None:
    if _guarded is not None and event in _STARTS:
        raise AssertionError(f"{_guarded.nodeid} starts a process, so mark it with `pytest.mark.process`")
