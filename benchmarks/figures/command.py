"""`python -m benchmarks report`: measure what the documentation quotes, keep the results, and write the pages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import charts, pages, results, runs
from benchmarks.figures.results import ROOT, STORED

_TIMEOUT = 3600.0


def main(arguments: Sequence[str]) -> int:
    """Run the command. Returns the exit status."""
    asked = _parse(arguments)
    if asked.list:
        for run in _quoted():
            print(f"{run:16} {runs.command(run)}")
        return 0
    failed = [] if asked.no_run else _measure(asked)
    known = results.load(asked.results)
    for page in pages.pages():
        target = (asked.pages or ROOT) / page.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(pages.filled(page.read_text(encoding="utf-8"), known), encoding="utf-8")
    for name, drawn in charts.drawn(known):
        ((asked.pages or ROOT) / name).write_text(drawn, encoding="utf-8")
    if lacking := [run for run in _quoted() if run not in known]:
        print(f"No result yet: {', '.join(lacking)}.")
    for reason in failed:
        print(reason, file=sys.stderr)
    return 1 if failed else 0


def _measure(asked: argparse.Namespace) -> list[str]:
    """Measure the runs that have no result of this commit. Returns the reasons of those that failed."""
    failed = []
    wanted = asked.only or _quoted()
    for run in wanted:
        at = results.commit()
        if run not in results.missing(wanted, results.load(asked.results), at):
            print(f"{run}: there is a result of commit {at} already.")
            continue
        command = runs.command(run, asked.options)
        print(f"{run}: {command}", flush=True)
        try:
            result = runs.measure(run, asked.options, asked.timeout)
        except runs.RunFailed as error:
            failed.append(str(error))
            continue
        results.save(asked.results, run, {"command": command, "commit": at, **result})
    return failed


def _quoted() -> list[str]:
    """The runs that pages quote, in the order of the benchmarks."""
    quoted = {run for page in pages.pages() for run in pages.quoted(page.read_text(encoding="utf-8"))}
    return sorted(quoted, key=lambda run: (runs.ORDER.index(runs.arguments(run)[0]), run))


def _parse(arguments: Sequence[str]) -> Any:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks report",
        description="Run the benchmarks that the documentation quotes, keep the results, and write the pages from them. A run"
        " that has a result of this commit already is not repeated.",
    )
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="RUN,…", help="measure these runs only")
    parser.add_argument("--list", action="store_true", help="list the runs and their commands")
    parser.add_argument("--no-run", action="store_true", help="measure nothing, and write the pages from the results")
    parser.add_argument(
        "--results", type=Path, default=STORED, metavar="DIR", help="the results (default: benchmarks/results)"
    )
    parser.add_argument("--pages", type=Path, metavar="DIR", help="write copies of the pages there (default: in place)")
    parser.add_argument(
        "--timeout", type=float, default=_TIMEOUT, metavar="S", help="seconds that a run may take (default: 3600)"
    )
    parser.add_argument(
        "options", nargs="*", metavar="OPTION", help="after `--`: options of the benchmarks, as `-- --quick`"
    )
    asked = parser.parse_args(arguments)
    if asked.options and asked.results == STORED:
        parser.error("The documentation quotes results without options. Name another directory with --results.")
    if unknown := set(asked.only or ()) - set(_quoted()):
        parser.error(f"No page quotes {', '.join(sorted(unknown))}. --list has the runs that pages quote.")
    if asked.results != STORED and asked.pages is None:
        parser.error("Name a directory for the pages with --pages: those of the repository have its own results.")
    return asked
