"""`headrace serve` that counts its statements. At SIGUSR1 it writes the counts as JSON to the file in `BENCHMARK_TALLY`."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from headrace.store.connections.connection import Connection

FILE = "BENCHMARK_TALLY"
"""The variable of the environment with the path of the file."""

_FUNCTION = re.compile(r"headrace_(?:internal|granted)\.(\w+)")


class Tally(msgspec.Struct):
    """The cost of one statement: how often it was sent, and the total, longest and shortest time until its answer."""

    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    shortest: float = 3600.0


tallies: dict[str, Tally] = {}


def name_of(statement: str) -> str:
    """Return the function or the table that a statement begins with, or its first words."""
    found = _FUNCTION.search(statement)
    return found[1] if found else " ".join(statement.split()[:3])


def install() -> None:
    """Count every statement from now on."""
    watched = Connection._watched

    async def counted(self: Connection, statement: str, answer: Coroutine[Any, Any, Any]) -> Any:
        began = time.perf_counter()
        try:
            return await watched(self, statement, answer)
        finally:
            took = time.perf_counter() - began
            tally = tallies.setdefault(name_of(statement), Tally())
            tally.count, tally.seconds = tally.count + 1, tally.seconds + took
            tally.longest, tally.shortest = max(tally.longest, took), min(tally.shortest, took)

    Connection._watched = counted  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, lambda *_: write())


def write() -> None:
    """Write the counts so far, and reset the longest and shortest times."""
    target = Path(os.environ[FILE])
    aside = target.with_suffix(".new")
    aside.write_bytes(msgspec.json.encode(tallies))
    aside.replace(target)
    for tally in tallies.values():
        tally.longest, tally.shortest = 0.0, 3600.0


if __name__ == "__main__":
    install()
    from headrace.cli.main import main

    main()
