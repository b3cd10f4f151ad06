"""`python -m benchmarks chaos`: run scenarios, print a table, write JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import msgspec
from rich.console import Console

from benchmarks import facts
from benchmarks.chaos import report
from benchmarks.chaos.scenarios import SCENARIOS, Limits, Outcome, run
from benchmarks.chaos.site import Plan
from headrace import HeadraceError

QUICK = Plan(rate=100.0, workers=2, baseline=3.0, fault=2.0, recovery=7.0)

WIDTH = 120
"""The least width of the table, wherever it is written to."""

_FOREIGN = """
select name from headrace_internal.streams where name <> all ($1) order by name
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns 0 if every promise was kept, 1 if one was broken, 2 if nothing was run."""
    asked = parser().parse_args(arguments)
    console = Console()
    console.width = max(console.width, WIDTH)
    if asked.list:
        for name, scenario in SCENARIOS.items():
            print(f"{name:10} {scenario.about}")
        return 0
    if asked.database and not asked.beside_other_streams and (foreign := anyio.run(foreign_streams, asked.database)):
        console.print(
            f"The database has streams that chaos did not make, such as {foreign[0]!r}, and would be disturbed."
            " Name a disposable database, or add --beside-other-streams.",
            style="bold red",
        )
        return 2
    limits, outcomes = Limits(asked.ratio, asked.within), list[Outcome]()
    for name in asked.scenarios or SCENARIOS:
        outcomes.append(_run(name, _plan(asked), asked.database))
        console.print(f"{name}: {report.verdict(outcomes[-1], limits)}", highlight=False, soft_wrap=True)
        for accident in outcomes[-1].accidents:
            console.print(accident, markup=False, highlight=False)
        if asked.json:
            _write(asked.json, outcomes, limits, asked)
    report.show(console, outcomes, limits)
    return 1 if any(outcome.faults(limits) for outcome in outcomes) else 0


def _run(name: str, plan: Plan, database: str | None) -> Outcome:
    """Run a scenario. One that fails as a whole doesn't keep the next ones from running."""
    try:
        return anyio.run(run, name, plan, database)
    except (AssertionError, HeadraceError, OSError, TimeoutError, asyncpg.PostgresError) as error:
        return Outcome(name, SCENARIOS[name].about, accidents=[f"{type(error).__name__}: {error}"])


async def foreign_streams(url: str) -> list[str]:
    """The streams of a database that no run has made."""
    connection = await asyncpg.connect(url)
    try:
        if await connection.fetchval("select to_regclass('headrace_internal.streams')") is None:
            return []
        ours: list[str] = []
        if await connection.fetchval("select to_regclass('headrace_chaos.streams')") is not None:
            ours = [row["name"] for row in await connection.fetch("select name from headrace_chaos.streams")]
        return [row["name"] for row in await connection.fetch(_FOREIGN, ours)]
    finally:
        await connection.close()


def _plan(asked: argparse.Namespace) -> Plan:
    chosen = {name: value for name in ("rate", "workers") if (value := getattr(asked, name)) is not None}
    return msgspec.structs.replace(QUICK if asked.quick else Plan(), **chosen)


def _write(path: Path, outcomes: list[Outcome], limits: Limits, asked: argparse.Namespace) -> None:
    found: dict[str, Any] = {
        "outcomes": [report.flat(outcome, limits) for outcome in outcomes],
        "plan": msgspec.to_builtins(_plan(asked)),
        "limits": msgspec.to_builtins(limits),
        "machine": facts.machine(),
        "versions": facts.versions(),
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    options = argparse.ArgumentParser(prog="python -m benchmarks chaos", description="Faults beside a steady load.")
    names = [*SCENARIOS, []]  # argparse checks the empty list as well
    options.add_argument("scenarios", nargs="*", choices=names, metavar="SCENARIO", help=", ".join(SCENARIOS))
    options.add_argument("--list", action="store_true", help="list the scenarios, and run none")
    options.add_argument("--database", metavar="URL", help="a disposable database; else servers are started")
    options.add_argument(
        "--beside-other-streams", action="store_true", help="although the database has streams that chaos did not make"
    )
    options.add_argument("--quick", action="store_true", help="short phases: whether promises are kept, not how fast")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there, too")
    options.add_argument("--rate", type=float, metavar="N", help="messages that are published per second (200)")
    options.add_argument("--workers", type=int, metavar="N", help="worker processes (3)")
    limits = Limits()
    options.add_argument(
        "--ratio", type=float, default=limits.ratio, metavar="R", help="the lowest rate after a fault (0.95)"
    )
    options.add_argument(
        "--within", type=float, default=limits.seconds, metavar="S", help="seconds that a recovery may take (5)"
    )
    return options
