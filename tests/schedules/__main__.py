"""Explore schedules: `python -m tests.schedules --help`."""

from __future__ import annotations

import argparse
import sys

from tests.schedules import states
from tests.schedules.campaign import MEMORY, explore, explorer, find_planted, server, table
from tests.schedules.explore import shrunk
from tests.schedules.schedules import parse

KINDS = ["pairs", "random", "catalog", "crash"]


def repeat(line: str) -> int:
    schedule = parse(line)
    with server() as dsn, explorer(dsn, schedule.state) as one:
        outcome = one.run(schedule)
        if outcome.violations:
            schedule = shrunk(one, schedule)
            print(f"as short as possible: {schedule}")
        print("\n".join(outcome.violations) or f"nothing is wrong, gates passed: {outcome.passed}")
    return bool(outcome.violations)


def planted(options: argparse.Namespace) -> int:
    found = []
    for bug, one in find_planted(options.names, options.seed, options.seconds):
        print(
            f"{bug.name}: {one.violation or 'NOT FOUND'}, {one.schedules} schedules, {one.seconds:.1f} s",
            file=sys.stderr,
        )
        found.append((bug, one))
    print("\n".join(table(found)))
    missed = sum(one.schedule is None for _, one in found)
    print(f"{len(found) - missed} of {len(found)} found, {sum(one.seconds for _, one in found):.0f} s")
    return bool(missed)


def _count(text: str) -> int:
    return int(float(text))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.schedules", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("explore", help="run schedules, and check what holds after each one")
    run.add_argument("--kinds", nargs="*", default=KINDS[:3], choices=KINDS)
    run.add_argument("--preemptions", type=int, default=3, help="of pairs (default: %(default)s)")
    run.add_argument("--states", nargs="*", default=list(states.STATES), choices=list(states.STATES))
    run.add_argument("--seconds", type=float, help="0 for no limit (default: 60, or none with --count)")
    run.add_argument(
        "--count", type=_count, default=0, help="how many schedules in all, such as 1e6 (default: no limit)"
    )
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--jobs", type=int, default=2, help="processes, each with a server (default: %(default)s)")
    run.add_argument("--directory", default=MEMORY)
    again = commands.add_parser("repeat", help="run the schedule of a line")
    again.add_argument("line")
    plants = commands.add_parser("planted", help="find the planted bugs")
    plants.add_argument("names", nargs="*", help="all by default")
    plants.add_argument("--seed", type=int, default=1)
    plants.add_argument("--seconds", type=float, default=60, help="for each, at most (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.command == "repeat":
        return repeat(options.line)
    if options.command == "planted":
        return planted(options)
    if options.seconds is None:
        options.seconds = 0 if options.count else 60
    report = explore(options)
    print("\n".join(report.lines()))
    return bool(report.violations)


if __name__ == "__main__":
    sys.exit(main())
